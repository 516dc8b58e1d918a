"""The oracle: attention as its definition reads, in memory that grows with q_len x kv_len.

Every other backend is held to this one, in outputs and gradients. It can do every call, gives the
weights, and has derivatives of every order and mode.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.precision import full_precision


def raw_scores(call: Call) -> Tensor:
    """scale * q.k, (batch, num_heads, q_len, kv_len), in fp32 at least."""
    return products(_accurate(call.q), _accurate(call.k)) * call.scale


def products(q: Tensor, k: Tensor) -> Tensor:
    """q.k of each query with each key of its group, (batch, num_heads, q_len, kv_len)."""
    return (_group(q, k) @ k.mT).view(*q.shape[:3], k.shape[2])


def capped_scores(call: Call) -> Tensor:
    """The scores, bounded by the softcap."""
    scores = raw_scores(call)
    return scores if call.softcap is None else call.softcap * torch.tanh(scores / call.softcap)


def masked_scores(call: Call) -> Tensor:
    """The scores with their bias; -inf where a query may not see a key."""
    scores = capped_scores(call)
    bias = call.written_bias()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask.dense(call.q.shape[1]), -torch.inf)
    return scores


def softmax_scores(call: Call) -> tuple[Tensor, Tensor]:
    """The weights before dropout, and the log-sum-exp of each row of scores.

    A row that sees nobody has weights 0 and log-sum-exp -inf, both with gradient 0.
    """
    weights, lse = softmax_rows(masked_scores(call))
    if call.sink_logits is not None:
        # A sink takes exp(sink) / (exp(sink) + exp(lse)) of the weight.
        sink = call.sink_logits.to(lse.dtype)[:, None]
        weights = weights * torch.sigmoid(lse - sink)[..., None]
    return weights, lse


def softmax_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax and log-sum-exp along the last axis.

    A row of -inf has weights 0 and log-sum-exp -inf, both with gradient 0.
    """
    if scores.shape[-1] == 0:
        return scores, scores.new_full(scores.shape[:-1], -torch.inf)
    peak = scores.detach().amax(dim=-1, keepdim=True)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    exponentials = torch.exp(scores - peak)
    total = exponentials.sum(dim=-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (peak + total.log()).masked_fill(empty, -torch.inf)
    return exponentials / total, lse.squeeze(-1)


def _run(call: Call) -> Result:
    with full_precision(call.q.device):
        weights, lse = softmax_scores(call)
        dropped = torch.dropout(weights, call.dropout, True) if call.dropout else weights
        v = _accurate(call.v)
        mixed = (_group(dropped, v) @ v).view(*call.q.shape[:3], v.shape[3])
        return Result(mixed.to(call.q.dtype), weights.to(call.q.dtype), lse)


def _group(queries: Tensor, keys: Tensor) -> Tensor:
    # Heads that share keys stand side by side, so their rows stack without copying a key.
    batch, heads, length, width = queries.shape
    group = heads // keys.shape[1]
    return queries.reshape(batch, keys.shape[1], group * length, width)


def _accurate(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _refusals(call: Call) -> Iterator[Refusal]:
    return iter(())


def _extra_bytes(call: Call) -> int:
    batch, heads, q_len, _ = call.q.shape
    width = 8 if call.q.dtype == torch.float64 else 4
    # scores, their exponentials and the weights stand side by side for a moment
    return 3 * width * batch * heads * q_len * call.k.shape[2]


REFERENCE = Backend(
    "reference",
    "the definition, written out: every call, every derivative, memory q_len x kv_len",
    _refusals,
    _run,
    _extra_bytes,
    quadratic=lambda call: 1 not in (call.q.shape[2], call.k.shape[2]),
)
