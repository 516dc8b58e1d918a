"""Each law of caches is broken by a cache that gets one thing wrong."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from manyheads.cache import Cached, GrowingCache, RingCache
from manyheads.laws import LawBroken, check_cache
from manyheads.masks import Tokens


class CountsFromNothing(GrowingCache):
    def follow(self, length: int, device: torch.device) -> Tokens:
        return Tokens(length, 0, device=device)


class ForgetsThePast(GrowingCache):
    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        if self.length > 8:
            self.rollback(1)
        return super().append(k, v, tokens)


class ForgetsPadding(GrowingCache):
    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        assert tokens is not None
        return super().append(k, v, Tokens(tokens.length, tokens.position, None, tokens.marks))


class RollsBackOneTooFew(GrowingCache):
    def rollback(self, count: int) -> None:
        super().rollback(count - (count == 3))


class ReordersValuesOnly(GrowingCache):
    def reorder(self, index: Tensor) -> None:
        k = self._k
        super().reorder(index)
        self._k = None if k is None or len(index) < len(k) else k[:, :, : self.length]


class TakesWhatDoesNotFit(GrowingCache):
    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        return super().append(k.double(), v.double(), tokens)


class WeighsNothing(GrowingCache):
    def memory_bytes(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("cache", "law"),
    [
        (CountsFromNothing, "any_split_equals_one_pass"),
        (ForgetsThePast, "any_split_equals_one_pass"),
        (ForgetsPadding, "left_padding_is_no_token"),
        (RollsBackOneTooFew, "rollback_forgets"),
        (ReordersValuesOnly, "rows_may_be_reordered"),
        (TakesWhatDoesNotFit, "a_refusal_changes_nothing"),
        (WeighsNothing, "tells_what_it_holds"),
    ],
)
def test_a_cache_that_is_wrong_is_found_out(cache: type[GrowingCache], law: str) -> None:
    with pytest.raises(LawBroken) as found:
        check_cache(cache)
    assert found.value.law.startswith(law + ":")


class ShowsTooFew(RingCache):
    def total(self, length: int) -> int:
        return max(super().total(length) - 1, length)


class ForgetsTheFirst(RingCache):
    def _chosen(self, tokens: Tokens, window: int) -> Tensor:
        keep_first, self.keep_first = self.keep_first, 0
        index = super()._chosen(tokens, window)
        self.keep_first = keep_first
        return index


class RollsBackTooFar(RingCache):
    def rollback(self, count: int) -> None:
        self._can_undo = None if self._can_undo is None else self.length
        super().rollback(min(count, self.length))


class KeepsThePrompt(RingCache):
    _came = 0

    def memory_bytes(self) -> int:
        return 1000 * self._came

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        self._came += k.shape[2]
        return super().append(k, v, tokens)


@pytest.mark.parametrize(
    ("ring", "law"),
    [
        (lambda: ShowsTooFew(4), "any_split_equals_one_pass_of_the_window"),
        (lambda: ForgetsTheFirst(4, 2), "any_split_equals_one_pass_of_the_window"),
        (lambda: RollsBackTooFar(3), "any_history_equals_one_pass_of_the_window"),
        (lambda: KeepsThePrompt(4), "a_ring_stays_small"),
    ],
)
def test_a_ring_that_is_wrong_is_found_out(ring: Callable[[], RingCache], law: str) -> None:
    with pytest.raises(LawBroken) as found:
        check_cache(ring)
    assert found.value.law.startswith(law + ":")
