"""`make gpu-check` can be called, says what it lacks, and counts broken laws; nothing is timed."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from benchmarks import gpu
from benchmarks.gpu import main

from manyheads.functional import BACKENDS, Call, Result
from manyheads.functional.reference import REFERENCE


def test_without_a_device_it_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--folder", str(tmp_path)]) == 1
    assert "No CUDA device was found, so nothing was checked" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_script_tries_itself_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def wrong(call: Call) -> Result:
        result = REFERENCE.run(call)
        return result._replace(output=result.output * 2)

    monkeypatch.setitem(BACKENDS, "wrong", dataclasses.replace(REFERENCE, name="wrong", run=wrong))
    assert main(["--device", "cpu", "--folder", str(tmp_path)]) == 1
    assert "2 laws broken; all was done" in capsys.readouterr().out
    told = json.loads((tmp_path / "gpu.json").read_text())
    broken = {row["backend"]: row["broken"] for row in told["laws"]}
    assert broken == {**dict.fromkeys(BACKENDS, 0), "wrong": 2, "auto": 0}
    assert {row["ours is"] for row in told["speeds"]} >= {"fused", None}
    assert "masks_over_several_blocks" in (tmp_path / "gpu.md").read_text()


def test_when_the_time_is_over_it_begins_nothing_new_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--device", "cpu", "--minutes", "0", "--folder", str(tmp_path)]) == 0
    assert "the time was over before all was done" in capsys.readouterr().out
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["speeds"] == [] and {row["laws"] for row in told["laws"]} >= {"0 of 2"}


def test_a_way_that_cannot_does_not_cost_the_others_their_turn() -> None:
    def fails() -> None:
        raise RuntimeError("no memory")

    row = gpu._timed({"ours": lambda: 1, "sdpa": fails}, gpu.Job("cpu", 0.0, small=True))
    assert row["sdpa ms"] == "RuntimeError('no memory')" and row["ours ms"] >= 0
