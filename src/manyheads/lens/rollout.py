"""Attention followed through all layers down to the tokens that went in."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional import Statistics
from manyheads.lens.checks import check_calls
from manyheads.probe import AttentionCall
from manyheads.shapes import check_probability


def rollout(
    calls: Sequence[Statistics],
    *,
    queries: Sequence[int] | None = None,
    residual: float = 0.5,
) -> Float[Tensor, "batch queries length"]:
    """How much of each input token stands in a token of the last layer, by attention alone.

    The heads' mean weights and the residual stream are mixed in each layer, and the layers
    multiplied. Each row sums to 1. Under uniform heads that see all, a token keeps ``residual`` to
    the power of the layers of itself, and shares the rest evenly. Causal layers take it as well: a
    token has nothing of those to come. For few queries no memory of length x length is needed.

    Args:
        calls: The self-attention of each layer, from the first to the last, all heads in one.
        queries: Which tokens of the last layer; None for all.
        residual: The share of the stream that passes a layer by; 0 leaves it out.

    Raises:
        ShapeError: If the calls are not self-attention over the same tokens.
        OptionError: If a query is not among the tokens.

    Source:
        Abnar and Zuidema 2020 (arXiv:2005.00928), section 3 (attention rollout).

    Example:
        >>> from manyheads.lens import of_weights
        >>> shifted = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> layer = of_weights(shifted[None, None])
        >>> rollout([layer, layer], queries=[2])
        tensor([[[0.2500, 0.5000, 0.2500]]])
    """
    batch, length = check_stack(calls)
    check_probability("residual", residual)
    first = calls[0].call.q
    carried = one_hot(queries, length, first)[None].expand(batch, -1, -1)
    for call in reversed(calls):
        mixed = call.carried(carried).mean(dim=1)
        carried = residual * carried + (1 - residual) * mixed
    return carried


def check_stack(calls: Sequence[Statistics]) -> tuple[int, int]:
    """Refuse what is no stack of self-attention; give how many sequences and tokens it reads."""
    check_calls(calls)
    lengths = {(call.call.q.shape[0], call.call.q.shape[2], call.call.k.shape[2]) for call in calls}
    if len(lengths) != 1 or any(q_len != kv_len for _, q_len, kv_len in lengths):
        raise ShapeError(
            f"calls must be layers of self-attention over the same tokens; got (batch, q_len, "
            f"kv_len) of {sorted(lengths)}. Watch them with layers=..., without a cache."
        )
    runs = [call.run for call in calls if isinstance(call, AttentionCall)]
    if len(set(runs)) < len(runs):
        raise ShapeError(
            f"calls must be one a layer; got {len(runs)} calls of {len(set(runs))} runs of layers, "
            f"as where heads are computed one after the other. Join the weights of each layer: "
            f"of_weights(torch.cat([call.weights() for call in ...], dim=1))."
        )
    ((batch, length, _),) = lengths
    return batch, length


def one_hot(queries: Sequence[int] | None, length: int, like: Tensor) -> Tensor:
    """Rows (queries, length) that are 1 at their token."""
    chosen = range(length) if queries is None else queries
    is_list = isinstance(chosen, Sequence) and all(isinstance(each, int) for each in chosen)
    if not is_list:
        raise OptionError(
            f"queries must be a list of the numbers of tokens; got queries={queries!r}. Write [-1] "
            f"for the last."
        )
    if any(not -length <= query < length for query in chosen):
        raise OptionError(
            f"queries must be among the {length} tokens; got queries={list(chosen)}. The first is "
            f"0, the last -1."
        )
    dtype = torch.promote_types(like.dtype, torch.float32)
    rows = torch.zeros(len(chosen), length, device=like.device, dtype=dtype)
    rows[range(len(chosen)), list(chosen)] = 1.0
    return rows
