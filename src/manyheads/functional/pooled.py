"""Attention maps of any length as pictures of any size."""

from typing import Literal

import torch
from torch import Tensor

from manyheads.functional.call import Call
from manyheads.functional.pieces import Piece, pieces

How = Literal["mean", "sum", "max"]


def pool(call: Call, total: Tensor, height: int, width: int, how: How) -> Tensor:
    """The weights, pooled to cells of almost equal size: (batch, heads, height, width).

    Args:
        call: The call.
        total: Log-sum-exp of each row, sink included; finite where a row sees nobody.
        height: Rows of the picture, at most q_len.
        width: Columns of the picture, at most kv_len.
        how: What a cell says of its weights; pairs that may not see each other count as 0.
    """
    batch, heads, q_len, _ = call.q.shape
    cell_of_row, of_row = _cells(q_len, height, total)
    cell_of_key, of_key = _cells(call.k.shape[2], width, total)
    picture = total.new_zeros(batch, heads, height, width)
    add = _add_greatest if how == "max" else _add_sums
    for piece in pieces(call):
        add(picture, piece, total, cell_of_row[piece.rows], cell_of_key[piece.keys])
    return picture / of_row[:, None] / of_key if how == "mean" else picture


def _cells(length: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each token, and how many tokens each cell has."""
    cell = torch.arange(length, device=like.device) * count // max(length, 1)
    return cell, cell.bincount(minlength=count).to(like.dtype)


def _add_sums(
    picture: Tensor, piece: Piece, total: Tensor, row_cells: Tensor, key_cells: Tensor
) -> None:
    weights = (piece.scores - total[piece.at][..., None]).exp_()
    rows, row_at = _indicators(row_cells, total)
    keys, key_at = _indicators(key_cells, total)
    picture[piece.sequence, piece.heads, row_at, key_at] += rows.T @ weights @ keys


def _indicators(cells: Tensor, like: Tensor) -> tuple[Tensor, slice]:
    """(tokens, cells met), 1 where a token is in a cell; and which cells those are."""
    first, last = int(cells[0]), int(cells[-1])
    met = torch.arange(first, last + 1, device=cells.device)
    return (cells[:, None] == met).to(like.dtype), slice(first, last + 1)


def _add_greatest(
    picture: Tensor, piece: Piece, total: Tensor, row_cells: Tensor, key_cells: Tensor
) -> None:
    logarithms = piece.scores - total[piece.at][..., None]
    sizes = row_cells.unique_consecutive(return_counts=True)[1].tolist()
    # Rows first: they lie together, and what is left is small.
    greatest = torch.stack([rows.amax(dim=2) for rows in logarithms.split(sizes, dim=2)], dim=2)
    first, last = int(key_cells[0]), int(key_cells[-1])
    cells = slice(first, last + 1)
    found = greatest.new_full((*greatest.shape[:3], last + 1 - first), -torch.inf)
    found.scatter_reduce_(3, (key_cells - first).expand_as(greatest), greatest, "amax")
    at = (piece.sequence, piece.heads, slice(int(row_cells[0]), int(row_cells[-1]) + 1), cells)
    picture[at] = torch.maximum(picture[at], found.exp_())
