"""The laws that every task keeps."""

import random
from dataclasses import FrozenInstanceError

import pytest

from manyheads.errors import OptionError
from manyheads.tasks import TASKS, Copy, Dates, Example, Reverse, Task, find_task, home

SMALL = {
    name: kind(train_size=300, validation_size=60, test_size=60) for name, kind in TASKS.items()
}
every_task = pytest.mark.parametrize("task", SMALL.values(), ids=SMALL)


@every_task
def test_no_unit_of_one_split_is_in_another(task: Task) -> None:
    units = [{e.unit for e in task.split(name)} for name in ("train", "validation", "test")]
    assert not (units[0] & units[1] or units[0] & units[2] or units[1] & units[2])


@every_task
def test_equal_options_give_equal_examples(task: Task) -> None:
    again = type(task)(**task.options())
    assert again == task
    assert list(again.split("test")) == list(task.split("test"))


@every_task
def test_another_seed_deals_anew(task: Task) -> None:
    other = type(task)(**{**task.options(), "seed": 1})
    assert list(other.split("test")) != list(task.split("test"))
    assert {home(e.unit, seed=1) for e in other.split("test")} == {"test"}


@every_task
def test_the_vocabularies_hold_every_character(task: Task) -> None:
    for name in ("train", "validation", "test"):
        for example in task.split(name):
            ids = task.source_vocabulary.encode(example.source)
            assert task.source_vocabulary.decode(ids) == example.source
            assert task.target_vocabulary.encode(example.target)


@every_task
def test_the_alignment_speaks_of_every_target_character_and_stays_in_the_source(
    task: Task,
) -> None:
    for example in task.split("train"):
        assert len(example.alignment) == len(example.fields) == len(example.target)
        for positions in example.alignment:
            assert list(positions) == sorted(set(positions))
            assert all(0 <= i < len(example.source) for i in positions)


@every_task
def test_a_task_is_frozen_and_hashable(task: Task) -> None:
    assert hash(task) == hash(type(task)(**task.options()))
    with pytest.raises(FrozenInstanceError):
        task.seed = 3  # type: ignore[misc]


def test_a_split_is_a_sequence() -> None:
    split = Copy(test_size=7).split("test")
    assert len(split) == 7
    assert split[-1] == split[6] == split[5:][1]
    assert len(list(split)) == 7
    with pytest.raises(IndexError, match=r"below the 7 examples of 'test'; got index=7"):
        split[7]


def test_the_splits_are_eighty_ten_and_ten_percent() -> None:
    homes = [home(str(n), seed=0) for n in range(10_000)]
    assert homes.count("train") == pytest.approx(8000, abs=150)
    assert homes.count("validation") == pytest.approx(1000, abs=120)


def test_a_task_too_narrow_for_a_split_says_so() -> None:
    one_text = Copy(letters="a", min_length=1, max_length=1)
    empty = next(n for n in ("train", "test") if n != home("a", seed=0))
    with pytest.raises(OptionError, match=rf"leave examples for every split; got {empty}=empty"):
        one_text.split(empty)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Copy(train_size=0), r"train_size must be at least 1 .* got train_size=0\. Pass"),
        (lambda: Copy(test_size=-4), r"test_size must be at least 1 .* got test_size=-4\."),
        (lambda: Copy(seed=-1), r"seed must be 0 or more; got seed=-1\."),
        (lambda: Reverse(min_length=5, max_length=4), r"got min_length=5, max_length=4\. Swap"),
        (lambda: Copy(min_length=0), r"at least 1 character; got min_length=0"),
        (lambda: Copy(letters="aab"), r"each once; got characters='aab'\."),
        (lambda: TASKS["addition"](max_digits=0), r"at least 1; got max_digits=0\."),  # type: ignore[call-arg]
        (lambda: find_task("daets"), r"one of copy, reverse, addition, dates; got task='daets'\."),
        (lambda: Dates().split("dev"), r"one of train, validation, test; got split='dev'\."),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_is_named(build, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build()


def test_a_new_task_states_draw_and_its_vocabularies_only() -> None:
    class Shout(Copy):
        def draw(self, dice: random.Random) -> Example:
            example = super().draw(dice)
            return Example(
                example.source, example.target, example.alignment, example.fields, example.unit
            )

    assert len(Shout(train_size=5).split("train")[:]) == 5
