"""The laws of caches that round what they keep, and say how far they are off."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.cache import QuantizedCache
from manyheads.laws.history import attend, one_pass
from manyheads.laws.law import Suite, require
from manyheads.laws.text import Text
from manyheads.masks import Causal

BATCH, SLACK = 2, 1e-9


@dataclass(frozen=True)
class Rounding:
    """A way to make caches that round."""

    factory: Callable[[], QuantizedCache]
    seed: int

    def __str__(self) -> str:
        return f"cache={type(self.factory()).__name__}, seed={self.seed}"

    def text(self) -> Text:
        """A random text, half as long again as what is rounded at once and what is not."""
        cache = self.factory()
        length = 3 * (cache.recent + cache.group) // 2 + 3
        return Text.drawn(torch.Generator().manual_seed(self.seed), BATCH, length)

    def splits(self, length: int) -> list[list[int]]:
        """Ways to cut a text: a prompt and tokens, tokens alone, chunks."""
        tail = min(length - 1, 9)
        return [
            [length - tail] + [1] * tail,
            [1] * length,
            [7] * (length // 7 - 1) + [7 + length % 7],
        ]


def reads_back_what_it_was_given(rounding: Rounding) -> None:
    """No key and no value is off by more than the cache says, after any rollback and reorder."""
    text = rounding.text()
    for split in rounding.splits(text.length):
        cache, start = rounding.factory(), 0
        for length in split:
            part = text.slice(start, start + length)
            cache.append(part.k, part.v)
            start += length
        _require_word(rounding, cache, text)
        cache.rollback(5)
        _require_word(rounding, cache, text.slice(0, text.length - 5))
        rows = torch.tensor([1, 1, 0])
        cache.reorder(rows)
        _require_word(rounding, cache, text.slice(0, text.length - 5).rows(rows))
        last = text.slice(text.length - 5, text.length).rows(rows)
        cache.append(last.k, last.v)
        _require_word(rounding, cache, text.rows(rows))


def outputs_are_off_by_what_rounding_explains(rounding: Rounding) -> None:
    """An output differs from that of exact keys and values by no more than their errors can do."""
    text, mask = rounding.text(), Causal()
    right = one_pass(text, mask)
    for split in rounding.splits(text.length):
        cache, start = rounding.factory(), 0
        for length in split:
            part, errors = text.slice(start, start + length), cache.error
            found = attend(cache, part, mask)
            off = (found - right[:, :, start : start + length]).abs()
            case = f"{rounding}, chunks of {split}, at {start}"
            most = _most(part.q, text.v, errors)
            require(
                bool((off <= most + SLACK).all()),
                case,
                f"an output is off by {float(off.max()):.3g}; rounding explains "
                f"{float(most.max()):.3g}",
            )
            start += length


def _most(q: Tensor, v: Tensor, errors: tuple[float, float]) -> Tensor:
    # A score is off by at most |q| |k error| / sqrt(head_dim) <= |q| times the largest of a key's
    # errors, a ratio of two weights by e to twice that; values add their own errors.
    score = q.norm(dim=-1, keepdim=True) * errors[0]
    return errors[1] + torch.expm1(2 * score) * v.abs().max()


def _require_word(rounding: Rounding, cache: QuantizedCache, text: Text) -> None:
    held = cache.read()
    for name, found, right, error in (
        ("a key", held.k, text.k, cache.error[0]),
        ("a value", held.v, text.v, cache.error[1]),
    ):
        off = float((found - right).abs().max())
        require(
            off <= error * (1 + SLACK) and math.isfinite(error),
            rounding,
            f"{name} is off by {off:.3g}, and the cache says {error:.3g}",
        )


LAWS: Suite = (reads_back_what_it_was_given, outputs_are_off_by_what_rounding_explains)
