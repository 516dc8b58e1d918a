"""What holds for every test: seeded, one thread, no screen, no clock."""

import os
from importlib import import_module
from pathlib import Path

import hypothesis
import pytest
import torch

os.environ.setdefault("MPLBACKEND", "Agg")
hypothesis.settings.register_profile(
    "untimed",
    hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")
SOURCE = Path(__file__).parent / "src"


def pytest_collect_file(file_path: Path) -> None:
    """Import a file's package before the file, as Python does and pytest does not.

    Pytest would hang the module on its package in the place of the function that has its name, and
    ``mh.compare`` would be no function in the doctests of ``compare.py`` run alone.
    """
    if SOURCE in file_path.parents:
        import_module(".".join(file_path.parent.relative_to(SOURCE).parts))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers of pytest -n share the cores already
