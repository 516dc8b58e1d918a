"""The laws of caches that keep a window of the text, and perhaps its first tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.cache import RingCache
from manyheads.errors import CacheError
from manyheads.laws.history import History
from manyheads.laws.law import Suite, require
from manyheads.laws.text import Text, alike
from manyheads.masks import Causal, Documents, Global, Mask, PerHead, Rule, Window

HISTORIES = 6
"""Histories that are drawn for each mask."""


def ring_masks(size: int, keep_first: int) -> Mapping[str, Callable[[Text, Text], Mask]]:
    """Masks that see no more than a ring keeps."""
    window: Mask = Window(size)
    if keep_first:
        window = window | Global(tuple(range(keep_first)))
    seen = Causal() & window
    return {
        "window": lambda whole, new: seen,
        "documents": lambda whole, new: seen & Documents(new.ids),
        "tags": lambda whole, new: seen & (Window(2) | Global(new.ids == 1)),
        "rule": lambda whole, new: seen & Rule(alike, "alike"),
        "heads": lambda whole, new: (
            Causal() & PerHead((window, Window(min(2, size)), window & Documents(new.ids), window))
        ),
    }


@dataclass(frozen=True)
class Rolling:
    """A way to make rings, and how nearly one must give back what it was given."""

    factory: Callable[[], RingCache]
    tolerance: float
    seed: int

    def __str__(self) -> str:
        return f"cache={type(self.factory()).__name__}, seed={self.seed}"

    def history(self, mask: str, seed: int) -> "RingHistory":
        """An empty ring, and what it should hold."""
        ring = self.factory()
        masks = ring_masks(ring.size, ring.keep_first)
        return RingHistory(
            self.factory, mask, tolerance=self.tolerance, seed=seed, masks=masks
        )  # fmt: skip

    def histories(self, mask: str) -> "list[RingHistory]":
        """Some of them, with draws of their own."""
        first = HISTORIES * self.seed
        return [self.history(mask, seed) for seed in range(first, first + HISTORIES)]


class RingHistory(History):
    """A ring and, beside it, the whole text of which it keeps a part."""

    cache: RingCache

    def rollback(self, count: int) -> None:
        if count <= self.cache.can_undo:
            super().rollback(count)
            return
        self.done.append(f"refused rollback {count}")
        try:
            self.cache.rollback(count)
        except CacheError as error:
            told = str(self.cache.can_undo) in str(error)
            require(told, self, f"the refusal does not say how far it can: {error}")
            self._check()
        else:
            require(False, self, "a rollback past what is held was taken without a word")

    def _check(self) -> None:
        cache, text = self.cache, self.whole
        most = cache.keep_first + max(cache.size - 1 + cache.undo, 1)
        require(cache.length <= most, self, f"length is {cache.length}, more than {most}")
        if text.positions is None or not text.length:
            return
        held = cache.positions.expand(text.batch, -1)
        for row in range(text.batch):
            there = text.positions[row][text.positions[row] >= 0]
            needed = {*_window(there, cache.size - 1), *there[there < cache.keep_first].tolist()}
            found = held[row][held[row] >= 0].tolist()
            require(needed <= set(found), self, f"row {row} holds {found} and needs {needed}")
            require(found == sorted(set(found)), self, f"row {row} holds {found}")


def _window(there: Tensor, size: int) -> list[int]:
    kept: list[int] = there[max(len(there) - size, 0) :].tolist()
    return kept


def any_split_equals_one_pass_of_the_window(rolling: Rolling) -> None:
    """Chunks that are shorter and longer than the window give what one pass gives."""
    ring = rolling.factory()
    size, edge = ring.size, ring.size + ring.keep_first
    for split in ([1] * (2 * edge + 3), [edge + 2, 1, 1, 1], [2, edge, 2 * edge, 1, 1], [size] * 3):
        history = rolling.history("window", rolling.seed)
        for length in split:
            history.append(length)


def any_history_equals_one_pass_of_the_window(rolling: Rolling) -> None:
    """After any appends, rollbacks and reorders, new tokens get what one pass gives them."""
    ring = rolling.factory()
    for mask in ring_masks(ring.size, ring.keep_first):
        for history in rolling.histories(mask):
            history.live()
            history.live()


def a_rollback_is_exact_or_refused(rolling: Rolling) -> None:
    """As many tokens as it says can be rolled back, wherever the ring stands; no more."""
    ring = rolling.factory()
    for filled in (1, ring.size, ring.size + ring.keep_first + 1, 3 * ring.size + 5):
        history = rolling.history("window", rolling.seed)
        history.append(filled)
        can = history.cache.can_undo
        if filled > ring.size + ring.keep_first + ring.undo:
            least = max(ring.size - 1 + ring.undo, 1) - max(ring.size - 1, 1)
            require(can >= least, history, f"it can undo {can}, and promised {least}")
        history.rollback(can + 1)
        history.rollback(can)
        history.append(1)
        history.append(2)


def a_ring_stays_small(rolling: Rolling) -> None:
    """Memory does not grow with the text, whether it comes at once or token by token."""
    ring = rolling.factory()
    sizes = []
    with torch.no_grad():
        for length in (20, 200):
            for split in ([length * (ring.size + ring.keep_first)], [7] * length):
                cache = rolling.factory()
                for part in split:
                    x = torch.zeros(1, 1, part, 4)
                    cache.append(x, x)
                sizes.append(cache.memory_bytes())
    require(max(sizes) <= 4 * max(min(sizes), 64), rolling, f"it takes {sizes} bytes")


LAWS: Suite = (
    any_split_equals_one_pass_of_the_window,
    any_history_equals_one_pass_of_the_window,
    a_rollback_is_exact_or_refused,
    a_ring_stays_small,
)
