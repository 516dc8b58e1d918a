"""Training from the outside: what it learns, writes, and says."""

import csv
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyheads.errors import MissingExtraError
from manyheads.tasks import Copy
from manyheads.training import Recipe, exact_match, load, small_config, train
from manyheads.training.module import TransformerModule

TASK = Copy(letters="abcdef", max_length=4, train_size=2048, validation_size=64)
TINY = Recipe(steps=4, batch_size=8, warmup=1, check_every=2, stop_at=2.0)


def tiny(**changes: object):
    return replace(small_config(TASK), d_model=16, d_hidden=16, num_heads=2, **changes)  # type: ignore[arg-type]


def test_it_learns_to_copy_texts_it_never_saw(tmp_path: Path) -> None:
    recipe = Recipe(steps=250, warmup=20, check_every=50, learning_rate=1e-2, stop_at=0.9)
    config = replace(small_config(TASK), d_model=32, d_hidden=32, num_heads=2)
    trained = train(TASK, recipe, config, out=tmp_path, progress="none")
    assert trained.report["exact_match"] >= 0.9
    assert trained.report["steps"] < recipe.steps
    assert exact_match(load(tmp_path), TASK.split("test")[:100]) >= 0.8


def test_a_batch_may_be_cut_anywhere(tmp_path: Path) -> None:
    # Texts of 2 to 4 letters: microbatches differ in their counts of tokens.
    whole = Recipe(steps=1, batch_size=32, warmup=0, check_every=1, precision="64-true")
    cut = replace(whole, batch_size=8, accumulate=4)
    task = replace(TASK, train_size=32)
    first, second = (
        train(task, recipe, tiny(), progress="none").model.state_dict() for recipe in (whole, cut)
    )
    assert all(t.dtype == torch.float64 for t in first.values() if t.is_floating_point())
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-9, atol=1e-9)


def test_losses_and_exact_match_are_logged(tmp_path: Path) -> None:
    recipe = replace(TINY, steps=20, check_every=10)
    train(TASK, recipe, tiny(), out=tmp_path, progress="none")
    with next(tmp_path.glob("logs/*/metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["loss"]] == ["9", "19"]
    assert all(float(row["loss"]) < 3 for row in rows if row["loss"])
    assert sum(bool(row["exact_match"]) for row in rows) == 2
    assert list(tmp_path.glob("tensorboard/*/events*"))


def test_nothing_is_written_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(TASK, TINY, tiny(), progress="none")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, batch: object, batch_idx: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TransformerModule, "training_step", interrupt)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(TASK, TINY, tiny(), progress="none")
    assert signal.getsignal(signal.SIGINT) is before


def test_no_progress_means_no_word(capfd: pytest.CaptureFixture[str]) -> None:
    train(TASK, TINY, tiny(), progress="none")
    assert capfd.readouterr() == ("", "")


def test_the_bar_names_the_task_and_each_check(capfd: pytest.CaptureFixture[str]) -> None:
    train(TASK, TINY, tiny(), progress="bar")
    shown, errors = capfd.readouterr()
    assert "Training on copy" in shown
    assert "4/4 steps" in shown
    assert "step 2: " in shown and "of the validation split exactly right" in shown
    assert errors == ""


def test_without_rich_there_is_a_plain_bar(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    train(TASK, TINY, tiny(), progress="bar")
    assert "4/4" in "".join(capfd.readouterr())


def test_without_lightning_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.training.extra.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'Run: pip install .*"lightning'):
        train(TASK, TINY, progress="none")


def test_loading_needs_neither_lightning_nor_babel() -> None:
    code = (
        "import sys; import manyheads.training, manyheads.tasks\n"
        "print([m for m in ('lightning', 'babel', 'rich', 'tensorboard') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
