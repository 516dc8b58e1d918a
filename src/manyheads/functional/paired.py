"""The scores of each query with one key of its own."""

import torch
from torch import Tensor

from manyheads.functional.call import Call
from manyheads.functional.pieces import SCORES
from manyheads.functional.window import window

_LENGTH = 128
"""Pairs at once: what a mask or bias says is written out for their square."""


def paired_scores(call: Call, rows: slice, shift: int) -> Tensor:
    """The masked score of query i and key i + shift, for each i of ``rows``.

    Returns:
        (batch, num_heads, rows) in fp32 at least; -inf where the query may not see the key.
    """
    batch = call.q.shape[0]
    found = [call.q.new_empty(*call.q.shape[:2], 0, dtype=_wide(call.q))]
    for first in range(rows.start, rows.stop, _length(call)):
        some = slice(first, min(first + _length(call), rows.stop))
        keys = slice(some.start + shift, some.stop + shift)
        found.append(_diagonal(window(call, slice(0, batch), some, keys)))
    return torch.cat(found, dim=2)


def _length(call: Call) -> int:
    if call.mask is not None or call.bias is not None:
        return _LENGTH
    return max(1, SCORES // max(1, call.q[:, :, :1].numel()))


def _diagonal(part: Call) -> Tensor:
    q, k = (x.to(_wide(x)) for x in (part.q, part.k))
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = torch.linalg.vecdot(groups, k[:, :, None]).flatten(1, 2) * part.scale
    if part.softcap is not None:
        scores = part.softcap * torch.tanh(scores / part.softcap)
    length, heads = scores.shape[2], scores.shape[1]
    bias = part.written_bias()
    if bias is not None:
        scores = scores + _own(bias, length).to(scores.dtype)
    if part.mask is not None:
        scores = scores.masked_fill(~_own(part.mask.dense(heads), length), -torch.inf)
    return scores


def _own(pairs: Tensor, length: int) -> Tensor:
    return pairs.expand(*pairs.shape[:2], length, length).diagonal(dim1=2, dim2=3)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
