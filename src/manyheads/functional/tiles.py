"""Blocks of queries and their keys as views, many of them in one call of the fused kernel."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyheads.masks.plan import Row

KEYS_AT_ONCE = 8192
"""Keys that one call of the kernel reads, repeats counted; measured best between 4k and 16k."""


@dataclass(frozen=True)
class Tile:
    """Blocks of queries that see alike, each ``step`` tokens after the one before.

    Args:
        row: The first block, with its keys.
        count: How many blocks.
        step: How many queries from one to the next.
        shifts: How many keys each run of keys moves from one block to the next.
    """

    row: Row
    count: int
    step: int
    shifts: tuple[int, ...]

    def split(self, most: int) -> Iterator["Tile"]:
        """The same blocks in tiles of at most ``most``."""
        for first in range(0, self.count, most):
            start = self.row.start + first * self.step
            runs = tuple(
                (lo + first * shift, hi + first * shift)
                for (lo, hi), shift in zip(self.row.runs, self.shifts, strict=True)
            )
            row = replace(self.row, start=start, stop=start + self.size, runs=runs)
            yield replace(self, row=row, count=min(most, self.count - first))

    @property
    def size(self) -> int:
        """Queries in a block."""
        return self.row.stop - self.row.start

    def queries(self, x: Tensor) -> Tensor:
        """(heads, q_len, width) as (count, heads, size, width), without a copy."""
        return _slide(x, self.row.start, self.size, self.count, self.step)

    def keys(self, x: Tensor) -> Tensor:
        """(heads, kv_len, width) as (count, heads, keys, width): a view if they are one run."""
        runs = [
            _slide(x, start, stop - start, self.count, shift)
            for (start, stop), shift in zip(self.row.runs, self.shifts, strict=True)
        ]
        return runs[0] if len(runs) == 1 else torch.cat(runs, dim=2)

    def add_to_keys(self, total: Tensor, part: Tensor) -> None:
        """Add (count, heads, keys, width) to the tokens of (heads, kv_len, width) they are of."""
        done = 0
        for (start, stop), shift in zip(self.row.runs, self.shifts, strict=True):
            run = part[:, :, done : done + stop - start]
            done += stop - start
            if shift == 0:
                total[:, start:stop] += run.sum(dim=0)
                continue
            # Blocks overlap: by pieces no longer than a step, each token is met once a piece.
            for at in range(0, stop - start, shift):
                piece = run[:, :, at : at + shift]
                _slide(total, start + at, piece.shape[2], self.count, shift).add_(piece)


def _slide(x: Tensor, start: int, size: int, count: int, step: int) -> Tensor:
    if count == 1 or step == 0:
        return x[None, :, start : start + size].expand(count, -1, -1, -1)
    reach = x[:, start : start + (count - 1) * step + size]
    return reach.unfold(1, size, step).permute(1, 0, 3, 2)


def tiles(rows: Iterable[Row]) -> Iterator[Tile]:
    """Join neighbouring rows that see alike, up to what one call of the kernel should read."""
    last: Tile | None = None
    for row in rows:
        joined = None if last is None else _join(last, row)
        if joined is None and last is not None:
            yield from last.split(max(1, KEYS_AT_ONCE // last.row.keys))
        last = joined or Tile(row, 1, 0, (0,) * len(row.runs))
    if last is not None:
        yield from last.split(max(1, KEYS_AT_ONCE // last.row.keys))


def _join(tile: Tile, row: Row) -> Tile | None:
    first = tile.row
    if row.likeness != first.likeness or row.stop - row.start != tile.size:
        return None
    if [hi - lo for lo, hi in row.runs] != [hi - lo for lo, hi in first.runs]:
        return None
    step, left = divmod(row.start - first.start, tile.count)
    starts = zip(row.runs, first.runs, strict=True)
    moved = [divmod(new - old, tile.count) for (new, _), (old, _) in starts]
    shifts = tuple(shift for shift, _ in moved)
    if left or any(rest for _, rest in moved) or min(shifts) < 0:
        return None
    if tile.count > 1 and (step, shifts) != (tile.step, tile.shifts):
        return None
    return Tile(first, tile.count + 1, step, shifts)
