"""Averages over the queries for which a question makes sense."""

from jaxtyping import Bool, Float
from torch import Tensor

from manyheads.functional import Statistics
from manyheads.functional.pieces import mask_of

PerHead = Float[Tensor, "batch num_heads"]


def over_queries(
    call: Statistics,
    rows: Float[Tensor, "batch num_heads q_len"],
    among: Bool[Tensor, "_batch q_len"] | None = None,
) -> PerHead:
    """The mean of a number of each query, over those that see anybody; 0 if there are none.

    Args:
        call: The call.
        rows: The numbers.
        among: Which queries count, (batch or 1, q_len); None for all.
    """
    counts = call.lse().detach().isfinite()
    if among is not None:
        counts = counts & among.to(counts.device)[:, None]
    number = counts.sum(dim=-1)
    return rows.where(counts, 0.0).sum(dim=-1) / number.clamp(min=1)


def positions(call: Statistics) -> tuple[Tensor, Tensor]:
    """Where the queries and the keys of a call stand, (batch or 1, length) each."""
    bound = mask_of(call.call)
    return bound.q.side(-2).position[:, 0, :, 0], bound.kv.side(-1).position[:, 0, 0]
