"""Multi-head attention head by head, written out once more in another way."""

import torch
from torch import Tensor

import manyheads as mh


def by_hand(
    layer: mh.MultiHeadAttention,
    x: Tensor,
    context: Tensor | None = None,
    value: Tensor | None = None,
    seen: Tensor | None = None,
    places: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The output, and the weights (batch, heads, q_len, kv_len).

    Args:
        layer: Its projections are separate.
        x: The stream.
        context: What is attended to; None means x.
        value: What is taken; None means the context.
        seen: bool, (q_len, kv_len) or (batch, heads or 1, q_len, kv_len).
        places: Positions of queries and keys, for rotary.
    """
    context = x if context is None else context
    value = context if value is None else value
    queries, keys, values = layer.q_proj(x), layer.k_proj(context), layer.v_proj(value)
    width, group = layer.head_dim, layer.num_heads // layer.num_kv_heads
    mixed, weights = [], []
    for head in range(layer.num_heads):
        own = slice(head * width, (head + 1) * width)
        kv = slice(head // group * width, (head // group + 1) * width)
        q, k = layer.q_norm(queries[..., own]), layer.k_norm(keys[..., kv])
        if layer.rotary is not None:
            assert places is not None
            q, k = (layer.rotary(t[:, None], p)[:, 0] for t, p in zip((q, k), places, strict=True))
        scores = torch.einsum("bqd,bkd->bqk", q, k) * _scale(layer, head)
        if layer.scores.softcap is not None:
            scores = layer.scores.softcap * (scores / layer.scores.softcap).tanh()
        if seen is not None:
            own_seen = seen if seen.ndim == 2 else seen[:, head if seen.shape[1] > 1 else 0]
            scores = scores.masked_fill(~own_seen, -torch.inf)
        if layer.sink_logits is not None:
            sink = layer.sink_logits[head].expand(*scores.shape[:2], 1)
            weight = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weight = scores.softmax(dim=-1).nan_to_num(0.0)
        weights.append(weight)
        mixed.append(weight @ values[..., kv] * _gate(layer, x, head))
    return layer.out_proj(torch.cat(mixed, dim=-1)), torch.stack(weights, dim=1)


def _scale(layer: mh.MultiHeadAttention, head: int) -> Tensor | float:
    scale = layer.head_dim**-0.5 if layer.scores.scale is None else layer.scores.scale
    return scale if layer.head_scale is None else scale * layer.head_scale[head]


def _gate(layer: mh.MultiHeadAttention, x: Tensor, head: int) -> Tensor | float:
    if layer.gate_proj is None:
        return 1.0
    logits = layer.gate_proj(x)
    width = logits.shape[-1] // layer.num_heads
    return 1 / (1 + (-logits[..., head * width : (head + 1) * width]).exp())
