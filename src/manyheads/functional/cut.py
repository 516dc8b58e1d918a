"""A call cut into pieces: some queries, and all the keys of which they may see some."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from manyheads.masks import Bound
from manyheads.masks.plan import BlockPlan, Row, plan
from manyheads.masks.squares import has_no_tensors

BLOCK, PAIRS = 128, 2**18
"""Queries of a piece, and its pairs where heads and sequences can be parted to keep to them.

Measured best where scores stay in the cache of a core and products are still large.
"""


Share = Literal["queries", "keys", "pairs", "all"]
"""Which part of a tensor is of a piece: its queries, its keys, its pairs, or all of it."""


class Piece(NamedTuple):
    """A block of queries and their keys, in some sequences and heads.

    Args:
        row: Which queries, and the runs of their keys.
        sequences: Which sequences.
        heads: Which query heads; `kv_heads` are theirs.
        kv_heads: See `heads`.
        mask: Added to the scores, (1, 1 or heads, queries, keys), 0 or -inf; None adds nothing.
    """

    row: Row
    sequences: slice
    heads: slice
    kv_heads: slice
    mask: Tensor | None

    def take(self, x: Tensor, share: Share) -> Tensor:
        """The part of a tensor that is of this piece; a view, unless its keys are several runs.

        Args:
            x: (batch, num_heads, q_len, ...) for "queries", (batch, num_kv_heads, kv_len, width)
                for "keys", (batch, num_heads, q_len, kv_len) for "pairs", where an axis has length
                1 if nothing changes along it.
            share: Which part.
        """
        parts = self._views(x, share)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=_AXIS_OF_KEYS[share])

    def add(self, total: Tensor, share: Share, part: Tensor) -> None:
        """Add to the part of a total that is of this piece, summed where it is shorter."""
        views = self._views(total, share)
        parts = [part]
        if len(views) > 1:
            axis = _AXIS_OF_KEYS[share]
            parts = list(part.split([view.shape[axis] for view in views], dim=axis))
        for view, added in zip(views, parts, strict=True):
            view += added.sum_to_size(view.shape)

    def _views(self, x: Tensor, share: Share) -> list[Tensor]:
        if share == "all":
            return [x]
        if share == "keys":
            return self._runs(x[self.sequences, self.kv_heads], -2)
        parts = (self.sequences, self.heads, slice(self.row.start, self.row.stop))
        sizes = x.shape[:3]
        x = x[tuple(p if n > 1 else slice(None) for p, n in zip(parts, sizes, strict=True))]
        return [x] if share == "queries" or x.shape[-1] == 1 else self._runs(x, -1)

    def _runs(self, x: Tensor, axis: int) -> list[Tensor]:
        return [x.narrow(axis, start, stop - start) for start, stop in self.row.runs]


_AXIS_OF_KEYS = {"keys": -2, "pairs": -1}


def cut(
    bound: Bound, heads: tuple[int, int, int], dtype: torch.dtype, *, whole: bool = False
) -> Iterator[Piece]:
    """The pieces of a call, always in the same order; queries that see nobody are in none.

    Args:
        bound: Who may see whom.
        heads: How many sequences, query heads and kv heads.
        dtype: Of the masks.
        whole: Whether the heads of a sequence should stay together, however many pairs that makes.
    """
    _, num_heads, num_kv_heads = heads
    group = num_heads // num_kv_heads
    for planned, row, parts in _places(bound, heads, whole=whole):
        mask = planned.additive(row, num_heads, dtype)
        by_head = mask is not None and mask.shape[1] > 1
        for sequences, these in parts:
            kv_heads = slice(these.start // group, (these.stop - 1) // group + 1)
            of_these = mask[:, these] if mask is not None and by_head else mask
            yield Piece(row, sequences, these, kv_heads, of_these)


def most_pairs(bound: Bound, heads: tuple[int, int, int], *, whole: bool = False) -> int:
    """The pairs of the largest piece that `cut` makes; no mask is written to tell."""
    return max(
        (
            row.pairs * (sequences.stop - sequences.start) * (these.stop - these.start)
            for _, row, parts in _places(bound, heads, whole=whole)
            for sequences, these in parts
        ),
        default=0,
    )


Parts = Iterator[tuple[slice, slice]]
"""Some sequences and some heads, one part after another."""


def _places(
    bound: Bound, heads: tuple[int, int, int], *, whole: bool
) -> Iterator[tuple[BlockPlan, Row, Parts]]:
    """Each row of each plan, and the parts in which it is done."""
    batch, num_heads, num_kv_heads = heads
    alike = has_no_tensors(bound)
    for planned in plan(bound, batch, num_heads, BLOCK):
        at, head = planned.sequence, planned.head
        in_batch = range(batch) if alike else range(at, at + 1)
        in_heads = range(num_heads) if head is None else range(head, head + 1)
        for row in planned.rows:
            most = max(PAIRS // row.pairs, len(in_heads) if whole else 1)
            yield planned, row, _parts(in_batch, in_heads, num_heads // num_kv_heads, most)


def _parts(sequences: range, heads: range, group: int, most: int) -> Parts:
    """Parts of at most so many heads: of several whole sequences, or of one."""
    if most >= len(heads):
        step, wide = most // len(heads), len(heads)
    else:
        # Heads of several groups only as whole groups, so that their keys are those of a slice.
        step, wide = 1, max(n for n in range(1, most + 1) if group % n == 0 or n % group == 0)
    for first in range(sequences.start, sequences.stop, step):
        for head in range(heads.start, heads.stop, wide):
            yield (
                slice(first, min(first + step, sequences.stop)),
                slice(head, min(head + wide, heads.stop)),
            )
