"""Attention maps of any length as pictures of any size."""

from typing import Literal

import torch
from torch import Tensor

from manyheads.functional.passes import Met

How = Literal["mean", "sum", "max"]


class Pooled:
    """Asks for the weights, pooled to cells of almost equal size.

    Args:
        total: What each row is normalised by, in logarithms.
        kv_len: How many keys there are.
        height: Rows of the picture, at most q_len.
        width: Columns of the picture, at most kv_len.
        how: What a cell says of its weights; pairs that may not see each other count as 0.
    """

    def __init__(self, total: Tensor, kv_len: int, height: int, width: int, how: How) -> None:
        self.how = how
        self.cell_of_row, self.of_row = _cells(total.shape[2], height, total)
        self.cell_of_key, self.of_key = _cells(kv_len, width, total)
        self.picture = total.new_zeros(*total.shape[:2], height, width)

    def meet(self, piece: Met) -> None:
        rows, keys = self.cell_of_row[piece.rows], self.cell_of_key[piece.keys]
        at = (piece.sequence, piece.heads, _met(rows), _met(keys))
        if self.how == "max":
            greatest = _greatest(piece.weights, rows, keys)
            self.picture[at] = torch.maximum(self.picture[at], greatest)
        else:
            sums = _indicators(rows, piece.weights).T @ piece.weights
            self.picture[at] += sums @ _indicators(keys, piece.weights)

    def answer(self) -> Tensor:
        """(batch, num_heads, height, width)."""
        if self.how == "mean":
            return self.picture / self.of_row[:, None] / self.of_key
        return self.picture


def _cells(length: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each token, and how many tokens each cell has."""
    cell = torch.arange(length, device=like.device) * count // max(length, 1)
    return cell, cell.bincount(minlength=count).to(like.dtype)


def _met(cells: Tensor) -> slice:
    """Which cells some neighbouring tokens are in."""
    return slice(int(cells[0]), int(cells[-1]) + 1)


def _indicators(cells: Tensor, like: Tensor) -> Tensor:
    """(tokens, cells met), 1 where a token is in a cell."""
    met = torch.arange(int(cells[0]), int(cells[-1]) + 1, device=cells.device)
    return (cells[:, None] == met).to(like.dtype)


def _greatest(weights: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
    """The greatest weight of each cell met."""
    sizes = rows.unique_consecutive(return_counts=True)[1].tolist()
    # Rows first: they lie together, and what is left is small.
    greatest = torch.stack([some.amax(dim=2) for some in weights.split(sizes, dim=2)], dim=2)
    met = _met(keys)
    found = greatest.new_zeros((*greatest.shape[:3], met.stop - met.start))
    return found.scatter_reduce_(3, (keys - met.start).expand_as(greatest), greatest, "amax")
