"""Some heads and some queries of a call."""

import torch
from torch import Tensor

from manyheads.functional import Call
from manyheads.functional.window import window
from manyheads.masks import Bound, Dense, PerHead, Rule, bind


def of_heads(call: Call, heads: Tensor) -> Call:
    """The call of some heads alone, each with its keys and values."""
    batch, num_heads, q_len, _ = call.q.shape
    kv_len = call.k.shape[2]
    of_kv = heads // (num_heads // call.k.shape[1])
    bias, mask = call.written_bias(), call.mask
    if bias is not None and bias.shape[1] > 1:
        bias = bias[:, heads]
    if mask is not None and _reads_head(mask):
        # Heads are renumbered, which a rule that asks for their numbers would not know.
        seen = mask.dense(num_heads)
        seen = seen.expand(seen.shape[0], seen.shape[1], q_len, kv_len)
        mask = bind(
            Dense(seen[:, heads] if seen.shape[1] > 1 else seen), batch, q_len, kv_len,
            device=call.q.device,
        )  # fmt: skip
    return call._replace(
        q=call.q[:, heads],
        k=call.k[:, of_kv],
        v=call.v[:, of_kv],
        bias=bias,
        mask=mask,
        sink_logits=None if call.sink_logits is None else call.sink_logits[heads],
    )


def _reads_head(mask: Bound) -> bool:
    by_rule = any(part.reads_head or isinstance(part, Rule | PerHead) for part in mask.rule.parts())
    return by_rule or any(fact.shape[1] > 1 for fact in mask.pairs.values())


def of_queries(call: Call, queries: slice | Tensor) -> Call:
    """The call of some queries alone."""
    if isinstance(queries, slice):
        queries = slice(*queries.indices(call.q.shape[2])[:2])
    # A call without a mask takes its queries for the last tokens, which these need not be.
    placed = call._replace(mask=call.bound)
    return window(placed, slice(0, call.q.shape[0]), queries, slice(0, call.k.shape[2]))


def as_tensor(chosen: object, device: torch.device) -> Tensor:
    """Indices as a tensor."""
    return torch.as_tensor(chosen, dtype=torch.int64, device=device)
