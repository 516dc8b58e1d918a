"""Log-sum-exp and entropy of every row of scores, in one pass."""

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.errors import BackendError
from manyheads.functional.call import Call
from manyheads.functional.choose import Auto, choose
from manyheads.functional.fold import without_object
from manyheads.functional.pieces import pieces
from manyheads.functional.precision import full_precision
from manyheads.functional.running_softmax import Running
from manyheads.functional.window import window

_ROUNDINGS = 8.0
"""By how many roundings of the greatest score an entropy from the kernel may be off; 2 measured."""

_TOLERANCE = 3e-4
"""Nats that this may come to; rows of which it may be more are met score by score."""


class Rows(NamedTuple):
    """What is kept of each row, (batch, num_heads, q_len).

    Args:
        lse: Log-sum-exp of the scores; -inf if the row sees nobody.
        total: The same with the sink logit: what weights are normalised by.
        entropy: Of the weights, in nats, with the sink as one more key.
    """

    lse: Tensor
    total: Tensor
    entropy: Tensor


@torch.no_grad()
def rows_of(call: Call) -> Rows:
    """Log-sum-exp and entropy of each row of a call."""
    found = None if call.sink_logits is not None else _by_kernel(call)
    return _by_pieces(call) if found is None else found


def _by_pieces(call: Call) -> Rows:
    running = Running(tuple(call.q.shape[:3]), call.q)
    for piece in pieces(call):
        running.meet(piece.at, piece.scores)
    lse = running.lse()
    if call.sink_logits is None:
        return Rows(lse, lse, running.entropy())
    sinks = call.sink_logits.to(lse.dtype)[:, None, None].expand(*lse.shape, 1)
    running.meet((slice(None),) * 3, sinks)
    return Rows(lse, running.lse(), running.entropy())


def _by_kernel(call: Call) -> Rows | None:
    """The same by one call of attention, whose values are the keys; None where none can.

    The entropy of weights w over scores s is lse - sum(w s), and sum(w s) is scale * q.(sum(w k)).
    Keys are centred first, which moves all scores of a row alike: large numbers would cancel.
    """
    if call.q.dtype not in (torch.float32, torch.float64) or call.softcap is not None:
        return None  # the kernel rounds its answers to the dtype of q
    if isinstance(call.bias, Tensor) or 0 in call.q.shape or 0 in call.k.shape:
        return None
    with full_precision(call.q.device):
        plain, lacking = without_object(call) if _folds(call) else (call, None)
        if plain.bias is not None:
            return None
        centre = plain.k.mean(dim=2, keepdim=True)
        k = plain.k - centre
        plain = plain._replace(k=k, v=k, need="lse", dropout=0.0)
        try:
            result = choose(plain, Auto(never_quadratic=True)).run(plain)
        except BackendError:
            return None
        lse, mean_key = result.lse, result.output
        assert lse is not None
        empty = lse == -torch.inf
        mean_score = mean_key.mul_(plain.q).sum(dim=-1) * plain.scale
        entropy = (lse - mean_score).clamp_(min=0.0).masked_fill_(empty, 0.0)
        farthest = _grouped(plain, k.norm(dim=-1).amax(dim=2))[..., None]
        reach = plain.q.norm(dim=-1) * farthest * abs(plain.scale)
        lse += _moved(plain, centre)
    lse = lse if lacking is None else lse + lacking
    return _mended(call, Rows(lse, lse, entropy), reach)


def _folds(call: Call) -> bool:
    bias = call.bias
    if bias is None or isinstance(bias, Tensor):
        return False
    return bias.fold(call.q, call.k, call.mask, call.scale) is not None


def _moved(call: Call, centre: Tensor) -> Tensor:
    """By how much centred keys lower the scores of each row."""
    groups = call.q.unflatten(1, (call.k.shape[1], -1))
    return (groups @ centre[:, :, None].mT)[..., 0].flatten(1, 2) * call.scale


def _grouped(call: Call, of_kv_heads: Tensor) -> Tensor:
    return of_kv_heads.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)


def _mended(call: Call, rows: Rows, reach: Tensor) -> Rows:
    """The same, with those rows met score by score whose scores are too large for the kernel."""
    large = reach * (_ROUNDINGS * torch.finfo(reach.dtype).eps) > _TOLERANCE
    where = large.any(dim=1).any(dim=0).nonzero()[:, 0]
    if not len(where):
        return rows
    if 2 * len(where) > large.shape[2]:
        return _by_pieces(call)
    batch, kv_len = call.q.shape[0], call.k.shape[2]
    part = _by_pieces(window(call, slice(0, batch), where, slice(0, kv_len)))
    for whole, mended in zip(rows[1:], part[1:], strict=True):
        whole[:, :, where] = mended
    return rows
