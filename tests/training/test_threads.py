import time
from dataclasses import replace

import pytest
import torch

from manyheads.errors import OptionError
from manyheads.tasks import Copy
from manyheads.training import quickest_threads, small_config, threads

TASK = Copy(train_size=8)
CONFIG = replace(small_config(TASK), d_model=8, d_hidden=8, num_heads=2)


def test_the_faster_of_two_is_chosen_and_the_setting_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(10_000))

    def perf_counter() -> float:
        # Each look at the clock takes as long as there are threads, so that one is faster.
        return next(clock) * torch.get_num_threads()

    monkeypatch.setattr(time, "perf_counter", perf_counter)
    before, state = torch.get_num_threads(), torch.get_rng_state()
    assert quickest_threads(TASK, CONFIG, batch_size=4, counts=(2, 1)) == 1
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_one_count_needs_no_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "Transformer", None)
    assert quickest_threads(TASK, CONFIG, counts=(3,)) == 3
    assert quickest_threads(TASK, CONFIG) == 1  # the tests run on one


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(OptionError, match=r"at least 1 thread each; got counts=\[0, 2\]\."):
        quickest_threads(TASK, CONFIG, counts=(2, 0))
