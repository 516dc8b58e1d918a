import pytest
import torch

from manyheads.errors import OptionError
from manyheads.tasks import Addition, Copy
from manyheads.training.batches import Batch, OrderedBatches, ShuffledBatches, encode

TASK = Copy(min_length=1, max_length=9, train_size=103)
DATA = encode(TASK.split("train"), TASK.source_vocabulary, TASK.target_vocabulary)


def rows(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(i for i in row if i) for row in batch.source.tolist()]


def test_targets_begin_and_end_and_sources_do_not() -> None:
    task = Addition()
    batch = encode(
        [task.example(1, 22), task.example(5, 5)], task.source_vocabulary, task.target_vocabulary
    )
    assert batch.source.tolist() == [[5, 3, 6, 6], [9, 3, 9, 0]]
    assert batch.target.tolist() == [[1, 5, 6, 2], [1, 4, 3, 2]]


def test_an_epoch_shows_each_example_once() -> None:
    batches = ShuffledBatches(DATA, batch_size=10, count=10, seed=0)
    seen = [row for batch in batches for row in rows(batch)]
    texts = [tuple(TASK.source_vocabulary.encode(e.source)) for e in TASK.split("train")]
    assert len(seen) == 100
    assert all(seen.count(row) <= texts.count(row) for row in seen)


def test_every_batch_is_full_and_no_wider_than_its_longest() -> None:
    for batch in ShuffledBatches(DATA, batch_size=8, count=30, seed=0):
        assert len(batch.source) == len(batch.target) == 8
        assert bool((batch.source[:, -1] != 0).any())
        assert bool((batch.target[:, -1] != 0).any())


def test_short_texts_meet_short_ones() -> None:
    batches = ShuffledBatches(DATA, batch_size=4, count=25, seed=0)
    padded = sum(batch.source.numel() for batch in batches)
    assert padded < 1.1 * int((DATA.source != 0).sum())


def test_epochs_and_seeds_are_shuffled_apart() -> None:
    first = [rows(b) for b in ShuffledBatches(DATA, batch_size=10, count=20, seed=0)]
    assert first[:10] != first[10:]
    assert first != [rows(b) for b in ShuffledBatches(DATA, batch_size=10, count=20, seed=1)]
    assert first == [rows(b) for b in ShuffledBatches(DATA, batch_size=10, count=20, seed=0)]


@pytest.mark.parametrize("cut", [0, 3, 10, 17])
def test_a_position_is_enough_to_go_on(cut: int) -> None:
    straight = [rows(b) for b in ShuffledBatches(DATA, batch_size=10, count=20, seed=3)]
    before = ShuffledBatches(DATA, batch_size=10, count=20, seed=3)
    stream = iter(before)
    for _ in range(cut):
        next(stream)
    after = ShuffledBatches(DATA, batch_size=10, count=20, seed=3)
    after.load_state_dict(before.state_dict())
    assert [rows(b) for b in after] == straight[cut:]
    assert len(after) == 20


def test_ordered_batches_give_all_examples_in_order() -> None:
    batches = list(OrderedBatches(DATA, batch_size=50))
    assert [len(b.source) for b in batches] == [50, 50, 3]
    assert len(OrderedBatches(DATA, batch_size=50)) == 3
    assert [row for b in batches for row in rows(b)] == rows(DATA)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(OptionError, match=r"at most the 103 training examples; got batch_size=104"):
        ShuffledBatches(DATA, batch_size=104, count=1, seed=0)


def test_batches_are_on_the_cpu_as_long_integers() -> None:
    assert DATA.source.dtype == torch.long
