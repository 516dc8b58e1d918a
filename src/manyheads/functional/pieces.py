"""Every score of a call, a piece at a time: in memory that does not grow with the length.

Blocks in which nobody sees anybody are left out, and where all see all no mask is made.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.functional.call import Call
from manyheads.functional.precision import full_precision
from manyheads.functional.reference import products
from manyheads.functional.window import window
from manyheads.masks import Bound, bind
from manyheads.masks.plan import Row, plan
from manyheads.masks.squares import has_no_tensors

ROWS, SCORES = 64, 2**19
"""Queries in a piece, and scores at once; measured best where they stay near the processor."""


class Piece(NamedTuple):
    """Some scores of a call.

    Args:
        sequence: Which sequences.
        heads: Which query heads.
        rows: Which queries.
        keys: Which keys.
        scores: (sequences, heads, rows, keys) in fp32 at least, biased and capped; -inf where a
            query may not see a key.
    """

    sequence: slice
    heads: slice
    rows: slice
    keys: slice
    scores: Tensor

    @property
    def at(self) -> tuple[slice, slice, slice]:
        """Where its rows stand in a tensor (batch, heads, q_len, ...)."""
        return self.sequence, self.heads, self.rows


def pieces(call: Call) -> Iterator[Piece]:
    """All scores of a call with which somebody sees somebody; each pair once, keys in order.

    Example:
        >>> import torch, manyheads as mh
        >>> q = k = v = torch.zeros(1, 2, 200, 8)
        >>> call = mh.statistics(q, k, v, mh.Causal() & mh.Window(64)).call
        >>> sum(piece.scores.numel() for piece in pieces(call)) < 2 * 200 * 200
        True
    """
    batch, heads, q_len, _ = call.q.shape
    if not (batch and q_len and call.k.shape[2]):
        return
    bound = mask_of(call)
    with full_precision(call.q.device):
        for planned in plan(bound, batch, heads, ROWS):
            own = slice(0, heads) if planned.head is None else slice(planned.head, planned.head + 1)
            for sequence in _sequences(bound, planned.sequence, batch, heads):
                held = (sequence.stop - sequence.start) * (own.stop - own.start)
                for row in planned.rows:
                    rows = slice(row.start, row.stop)
                    most = max(ROWS, SCORES // (held * (row.stop - row.start)))
                    for keys, hidden in _runs(row, most):
                        part = window(call, sequence, rows, keys)
                        scores = _scores(part, own, hidden)
                        yield Piece(sequence, own, rows, keys, scores)


def mask_of(call: Call) -> Bound:
    """The mask of a call, also where everyone sees everyone."""
    if call.mask is not None:
        return call.mask
    batch, _, q_len, _ = call.q.shape
    return bind(None, batch, q_len, call.k.shape[2], device=call.q.device)


def _sequences(bound: Bound, planned: int, batch: int, heads: int) -> Iterator[slice]:
    if not has_no_tensors(bound):
        yield slice(planned, planned + 1)
        return
    step = max(1, SCORES // (heads * ROWS * ROWS))
    for first in range(0, batch, step):
        yield slice(first, min(first + step, batch))


def _runs(row: Row, most: int) -> Iterator[tuple[slice, bool]]:
    """The keys of a row in stretches of at most ``most``, and whether any is hidden there."""
    alike = ((row.keys, True),) if row.likeness is None else row.likeness
    runs = iter(row.runs)
    start = stop = 0
    for count, like in alike:
        while count:
            if start == stop:
                start, stop = next(runs)
            taken = min(count, stop - start, most)
            yield slice(start, start + taken), like is not True
            start, count = start + taken, count - taken


def _scores(part: Call, heads: slice, hidden: bool) -> Tensor:
    """The masked scores of some heads of a call."""
    bias, mask, num_heads = part.written_bias(), part.mask, part.q.shape[1]
    if heads != slice(0, num_heads):
        kv_head = heads.start // (num_heads // part.k.shape[1])
        part = part._replace(q=part.q[:, heads], k=part.k[:, kv_head : kv_head + 1])
    # Scaled before the product, where there is less to scale.
    q = part.q.to(torch.promote_types(part.q.dtype, torch.float32)) * part.scale
    scores = products(q, part.k.to(q.dtype))
    if part.softcap is not None:
        scores = scores.div_(part.softcap).tanh_().mul_(part.softcap)
    if bias is not None:
        scores += _of_heads(bias, heads).to(scores.dtype)
    if hidden and mask is not None:
        scores.masked_fill_(~_of_heads(mask.dense(num_heads), heads), -torch.inf)
    return scores


def _of_heads(pairs: Tensor, heads: slice) -> Tensor:
    return pairs[:, heads] if pairs.shape[1] > 1 else pairs
