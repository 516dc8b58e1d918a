import os
import signal
import subprocess
import sys
import time

import pytest

from manyheads.cli import main
from manyheads.training import load


def test_a_run_holds_the_model_and_the_task_that_were_asked_for(run):
    trained = load(run)
    assert trained.model.config.d_model == 16
    assert trained.report["steps"] == 2
    assert trained.task().letters == "abcdé"
    assert trained.task().max_length == 4


def test_a_run_that_is_over_can_be_taken_up_and_stays_as_it_is(run, capsys):
    before = (run / "model.safetensors").read_bytes()
    assert main(["train", "copy", "--out", str(run), "--resume", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 steps: ")
    assert f'Try: manyheads look {run} "' in out
    assert (run / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["copi"], "task must be one of copy, reverse, addition, dates; got task='copi'"),
        (["copy", "--option", "colour=3"], "must name an option of copy; got 'colour'. It has"),
        (["copy", "--option", "max_length"], "must be NAME=VALUE; got 'max_length'"),
        (["copy", "--option", "max_length=long"], "max_length must be like 12; got 'long'"),
        (["copy", "--option", "max_length=1"], "min_length and max_length must be in order"),
        (["copy", "--num-heads", "7"], "num_heads must divide d_model=96; got num_heads=7"),
        (["copy", "--steps", "0"], "steps must be at least 1"),
        (["copy", "--threads", "0"], "--threads must be an int of at least 1"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    arguments, message, tmp_path, capsys
):
    out = tmp_path / "run"
    assert main(["train", *arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_trained_model_is_not_overwritten(run, capsys):
    assert main(["train", "copy", "--out", str(run)]) == 2
    assert "--out must not hold a trained model" in capsys.readouterr().err


def test_a_run_goes_on_as_it_began_or_not_at_all(run, capsys, tmp_path):
    assert main(["train", "reverse", "--out", str(run), "--resume"]) == 2
    assert "task must be that of the run, copy; got task=reverse" in capsys.readouterr().err
    assert main(["train", "copy", "--out", str(run), "--resume", "--d-model", "32"]) == 2
    assert "--resume must go on as the run began" in capsys.readouterr().err
    assert main(["train", "copy", "--out", str(tmp_path), "--resume"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def hear_ctrl_c() -> None:
    # Tests that run in the background have it ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_with_130_and_loses_nothing_that_was_saved(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "manyheads", "train", "copy", "--out", str(out)]
    command += ["--steps", "1000000", "--check-every", "2", "--quiet", "--d-model", "16"]
    command += ["--option", "train_size=64", "--option", "validation_size=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=hear_ctrl_c
    ) as process:
        try:
            deadline = time.monotonic() + 300
            while not (out / "model.safetensors").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=120)
        finally:
            process.kill()  # else it would train on for hours
        assert process.returncode == 130
    assert error == (
        "manyheads: stopped; all checkpoints are kept. "
        f"Go on with: manyheads train copy --out {out} --resume\n"
    )
    assert load(out).report["steps"] >= 2
