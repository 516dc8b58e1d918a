"""The fixture works in a project of a stranger."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

STRANGERS = """
import torch
from torch import nn
from manyheads.doctor import Facts, assert_causal


class Net(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.attention, self.first = nn.MultiheadAttention(16, 4, batch_first=True), first

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(self.first)
        return self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0]


def test_right(doctor):
    assert doctor(Net(1), torch.randn(2, 9, 16)).facts.causal is True


def test_wrong(doctor):
    doctor(Net(2), torch.randn(2, 9, 16), facts=Facts(causal=True))


def test_right_by_assert():
    assert_causal(Net(1), torch.randn(2, 9, 16))


def test_wrong_by_assert():
    assert_causal(Net(2), torch.randn(2, 9, 16))
"""


@pytest.fixture
def told(tmp_path):
    (tmp_path / "test_strangers.py").write_text(STRANGERS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *registered(), "test_strangers.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    return done.stdout


def registered() -> list[str]:
    """Nothing where the installed package names its plugin, else the plugin by its name."""
    from importlib.metadata import entry_points

    known = {each.value for each in entry_points(group="pytest11")}
    return [] if "manyheads.pytest_plugin" in known else ["-p", "manyheads.pytest_plugin"]


def test_the_fixture_and_the_assert_fail_on_the_broken_and_pass_on_the_healthy(told):
    assert "2 failed, 2 passed" in told
    assert "error future_leak: attention (MultiheadAttention), output 0 reads input 1" in told
    assert "AssertionError: attention (MultiheadAttention), output 0 reads input 1" in told


def test_the_package_registers_its_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"manyheads": "manyheads.pytest_plugin"}


def test_loading_the_plugin_loads_no_torch():
    code = "import sys, manyheads.pytest_plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
