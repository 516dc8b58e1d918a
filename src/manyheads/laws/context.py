"""The laws of caches that hold a context: filled once, read by every step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from manyheads.cache import CrossCache
from manyheads.errors import CacheError
from manyheads.functional import attention
from manyheads.laws.law import Suite, require, require_close
from manyheads.laws.text import Text
from manyheads.masks import Padding, Tokens, settle
from manyheads.masks.algebra import Everyone

KEEP = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4])


@dataclass(frozen=True)
class Holding:
    """A way to make caches of a context, and how nearly one must give it back."""

    factory: Callable[[], CrossCache]
    tolerance: float
    seed: int

    def __str__(self) -> str:
        return f"cache={type(self.factory()).__name__}, seed={self.seed}"

    def filled(self) -> tuple[CrossCache, Text]:
        """A cache and its context of four tokens in three rows, some of them absent."""
        text = Text.drawn(torch.Generator().manual_seed(self.seed), *KEEP.shape).void(~KEEP)
        cache = self.factory()
        cache.append(text.k, text.v, Tokens(text.length, 0, ~KEEP))
        return cache, text

    def agree(self, cache: CrossCache, text: Text, keep: torch.Tensor) -> None:
        """Hold what queries get of the cache against what they get of the context itself."""
        held = cache.read()
        q = text.q[:, :, :3]
        bound = settle(Everyone(), text.batch, Tokens(3, 0), held.tokens, related=False)
        found = attention(q, held.k, held.v, bound)
        right = attention(q, text.k, text.v, Padding(keep), backend="reference")
        require_close("the output", found, right, self, tolerance=self.tolerance)


def every_step_reads_the_context(holding: Holding) -> None:
    """Queries get what they would get of the context itself, and its padding stays hidden."""
    cache, text = holding.filled()
    require(not cache.wants_keys and cache.length == 4, holding, "it was filled and wants keys")
    for _ in range(2):
        holding.agree(cache, text, KEEP)


def rows_of_a_context_may_be_reordered(holding: Holding) -> None:
    """After a reorder, row i reads the context of row ``index[i]``; there may be more rows."""
    for index in ([2, 0, 0], [1], [0, 0, 1, 1, 2, 2]):
        cache, text = holding.filled()
        rows = torch.tensor(index)
        cache.reorder(rows)
        holding.agree(cache, text.rows(rows), KEEP[rows])


def a_refusal_leaves_the_context(holding: Holding) -> None:
    """A second context, a rollback and a row that is not there are refused by CacheError."""
    cache, text = holding.filled()
    for name, action in {
        "a second context": lambda: cache.append(text.k, text.v),
        "a rollback": lambda: cache.rollback(1),
        "a row that is not there": lambda: cache.reorder(torch.tensor([3])),
        "a read before the first context": lambda: holding.factory().read(),
    }.items():
        try:
            action()
        except CacheError:
            holding.agree(cache, text, KEEP)
        else:
            require(False, holding, f"{name} was taken without a word")


def counts_its_memory(holding: Holding) -> None:
    """An empty cache takes no memory, and a filled one at least some."""
    require(holding.factory().memory_bytes() == 0, holding, "an empty cache takes memory")
    require(holding.filled()[0].memory_bytes() > 0, holding, "a context takes no memory")


LAWS: Suite = (
    every_step_reads_the_context,
    rows_of_a_context_may_be_reordered,
    a_refusal_leaves_the_context,
    counts_its_memory,
)
