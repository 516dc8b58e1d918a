"""Run by `make wheel` inside an environment that holds the wheel and its core dependencies only."""

import subprocess
import sys
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

if __name__ == "__main__":
    import manyheads

    assert manyheads.__file__.startswith(sys.prefix), f"not the wheel: {manyheads.__file__}"
    assert manyheads.__version__ == metadata.version("manyheads")
    assert resources.files("manyheads").joinpath("py.typed").is_file()
    for name in getattr(manyheads, "__all__", []):
        getattr(manyheads, name)
    if hasattr(manyheads, "attention"):
        import torch

        q = torch.randn(2, 4, 5, 8)
        assert manyheads.attention(q, q, q).shape == q.shape
    if find_spec("manyheads.cli"):  # its extra is absent here, and that is what it must say
        command = Path(sys.executable).with_name("manyheads")
        done = subprocess.run([command, "info"], capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert (
            done.returncode != 0 and 'pip install "cyclopts' in said and "Traceback" not in said
        ), said
    print(f"manyheads {manyheads.__version__}: the wheel works")
