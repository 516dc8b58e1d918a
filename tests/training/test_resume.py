"""A run that was interrupted ends where it would have ended."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from manyheads.errors import CheckpointError, OptionError
from manyheads.models import TransformerConfig
from manyheads.tasks import Copy
from manyheads.training import Recipe, WarmupCosine, load, module, small_config, train
from manyheads.training.callbacks import SaveAfterCheck
from manyheads.training.state import read_state

TASK = Copy(letters="abcd", max_length=5, train_size=64, validation_size=16)
# Dropout, accumulation, and epochs of 64 / 8 / 2 = 4 steps that the checks fall in the midst of.
RECIPE = Recipe(steps=14, batch_size=8, accumulate=2, warmup=3, check_every=5, stop_at=2.0)


def config() -> TransformerConfig:
    return replace(small_config(TASK), d_model=16, d_hidden=16, num_heads=2, dropout=0.2)


class Killed(Exception):
    pass


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load(folder).model.state_dict()


def assert_equal_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch):
    """Let a run die right after its nth checkpoint, or before it."""
    original = SaveAfterCheck.on_validation_end

    def die(*, at_check: int, saved: bool) -> None:
        checks = iter(range(1, 100))

        def on_validation_end(self, trainer, module):
            last = next(checks) == at_check
            if saved or not last:
                original(self, trainer, module)
            if last:
                raise Killed

        monkeypatch.setattr(SaveAfterCheck, "on_validation_end", on_validation_end)

    yield die
    monkeypatch.setattr(SaveAfterCheck, "on_validation_end", original)


@pytest.mark.parametrize(("at_check", "saved"), [(1, True), (2, True), (2, False)])
def test_the_weights_in_the_end_are_those_of_a_straight_run_bit_for_bit(
    tmp_path: Path, dies, monkeypatch: pytest.MonkeyPatch, at_check: int, saved: bool
) -> None:
    straight = train(TASK, RECIPE, config(), out=tmp_path / "straight", progress="none")
    with monkeypatch.context() as patch:
        dies(at_check=at_check, saved=saved)
        with pytest.raises(Killed):
            train(TASK, RECIPE, config(), out=tmp_path / "cut", progress="none")
        patch.undo()
    monkeypatch.undo()
    torch.manual_seed(7)  # what the new process draws before must not matter
    torch.rand(3)
    resumed = train(TASK, resume=tmp_path / "cut", progress="none")
    assert resumed.report == straight.report
    assert_equal_bits(resumed.model.state_dict(), straight.model.state_dict())
    assert_equal_bits(weights(tmp_path / "cut"), weights(tmp_path / "straight"))


def test_a_run_killed_while_it_saves_loses_nothing_and_ends_the_same(tmp_path: Path) -> None:
    # The child stops in its second save, with the new file written beside the old one.
    code = (
        "import os, sys, time, torch; torch.set_num_threads(1)\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_resume import *\n"
        "replace_file, saves = os.replace, []\n"
        "def stop_in_the_second(a, b):\n"
        "    saves.append(b)\n"
        "    if [str(p)[-18:] for p in saves].count('resume.safetensors') == 2:\n"
        "        print('saving', flush=True); time.sleep(600)\n"
        "    replace_file(a, b)\n"
        "os.replace = stop_in_the_second\n"
        "train(TASK, RECIPE, config(), out=sys.argv[1], progress='none')\n"
    )
    cut, here = tmp_path / "cut", str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(cut), here], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "saving\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert read_state(cut / "resume.safetensors")["global_step"] == 5
    assert load(cut).report["steps"] == 5
    resumed = train(TASK, resume=cut, progress="none")
    straight = train(TASK, RECIPE, config(), progress="none")
    assert_equal_bits(resumed.model.state_dict(), straight.model.state_dict())


def test_moments_schedule_and_step_count_come_back_as_worked_by_hand(tmp_path: Path) -> None:
    # One weight of 1.0, AdamW, rate 0.1 with warm-up 3 then cosine: saved after 3 of 6 steps.
    gradients = [0.5, -1.0, 2.0, -0.25, 0.75, 1.5]
    straight = [0.963333334, 0.981318013, 0.929539272, 0.89237854, 0.856217852, 0.840005031]

    def start() -> tuple[nn.Parameter, torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1)
        factor = WarmupCosine(warmup=3, steps=6)
        return weight, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor.__call__)

    def steps(parts, slopes: list[float]) -> list[float]:
        weight, optimizer, schedule = parts
        values = []
        for slope in slopes:
            weight.grad = torch.tensor(slope, dtype=torch.float64)
            optimizer.step()
            schedule.step()
            values.append(float(weight.detach()))
        return values

    from manyheads.training.state import SafeState

    first = start()
    assert steps(first, gradients[:3]) == pytest.approx(straight[:3], abs=1e-8)
    weight, optimizer, schedule = first
    SafeState().save_checkpoint(
        {"w": weight, "o": optimizer.state_dict(), "s": schedule.state_dict()}, tmp_path / "state"
    )
    again = start()
    state = SafeState().load_checkpoint(tmp_path / "state")
    again[0].data.copy_(state["w"])
    again[1].load_state_dict(state["o"])
    again[2].load_state_dict(state["s"])
    continued = steps(again, gradients[3:])
    assert continued == pytest.approx(straight[3:], abs=1e-8)
    assert continued == steps(first, gradients[3:])  # and equal in every bit


def test_a_run_that_stopped_early_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch.ones(16, dtype=torch.bool)
    monkeypatch.setattr(module, "same_targets", lambda written, target: right)
    first = train(TASK, replace(RECIPE, stop_at=0.9), config(), out=tmp_path, progress="none")
    assert first.report == {"steps": 5, "exact_match": 1.0}
    again = train(TASK, resume=tmp_path, progress="none")
    assert again.report == first.report
    assert_equal_bits(again.model.state_dict(), first.model.state_dict())


def test_a_finished_run_can_be_taken_up_and_is_finished(tmp_path: Path) -> None:
    recipe = replace(RECIPE, steps=4, check_every=2)
    first = train(TASK, recipe, config(), out=tmp_path, progress="none")
    again = train(TASK, resume=tmp_path, progress="none")
    assert again.report == first.report
    assert_equal_bits(again.model.state_dict(), first.model.state_dict())


def test_training_leaves_the_callers_randomness_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train(TASK, replace(RECIPE, steps=2, warmup=1), config(), progress="none")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"must be a file; got path=.*Pass the folder of a"):
        train(TASK, resume=tmp_path / "nowhere", progress="none")


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    train(TASK, replace(RECIPE, steps=4, check_every=2), config(), out=tmp_path, progress="none")
    file = tmp_path / "resume.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"must be a whole safetensors file; got path="):
        train(TASK, resume=tmp_path, progress="none")


def test_a_trained_model_is_not_taken_for_a_run(tmp_path: Path) -> None:
    train(TASK, replace(RECIPE, steps=4, check_every=2), config(), out=tmp_path, progress="none")
    (tmp_path / "model.safetensors").rename(tmp_path / "resume.safetensors")
    with pytest.raises(CheckpointError, match=r"must be of the format manyheads-resume-1; got"):
        train(TASK, resume=tmp_path, progress="none")


def test_another_task_recipe_or_config_is_refused(tmp_path: Path) -> None:
    recipe = replace(RECIPE, steps=4, check_every=2)
    train(TASK, recipe, config(), out=tmp_path, progress="none")
    with pytest.raises(OptionError, match=r"task must be that of the run in .*Leave it out"):
        train(replace(TASK, seed=1), resume=tmp_path, progress="none")
    with pytest.raises(OptionError, match=r"recipe must be that of the run in .*got recipe="):
        train(TASK, replace(recipe, steps=9), resume=tmp_path, progress="none")
    with pytest.raises(OptionError, match=r"config must be that of the run in .*got config="):
        train(TASK, recipe, small_config(TASK), resume=tmp_path, progress="none")
