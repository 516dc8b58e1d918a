"""What holds for every test: seeded, one thread, no screen, no clock."""

import os

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


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers of pytest -n share the cores already
