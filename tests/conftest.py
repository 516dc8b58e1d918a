"""What holds for every test: seeded, one thread, no screen."""

import os

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch  # here, so that a run of test_house.py alone stays quick

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers of pytest -n share the cores already
