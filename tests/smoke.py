"""Run by `make wheel` inside an environment that holds the wheel and its core dependencies only."""

import sys
from importlib import metadata, resources

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
    print(f"manyheads {manyheads.__version__}: the wheel works")
