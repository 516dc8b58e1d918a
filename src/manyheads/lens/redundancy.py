"""How alike heads are."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.functional import Statistics
from manyheads.functional.pieces import SCORES
from manyheads.lens.checks import check_calls


def redundancy(calls: Sequence[Statistics]) -> Float[Tensor, "heads heads"]:
    """By how much the weights of heads differ: their Jensen-Shannon divergence, in nats.

    From 0 (the same weights) to log 2 = 0.693 (nothing in common), averaged over the queries; two
    uniform heads have 0. The square root is a distance, for clusters and maps of heads.

    Args:
        calls: Layers that read the same tokens; their heads stand one after the other.

    Returns:
        One number a pair of heads. It takes as many passes over the scores as there are heads.

    Raises:
        ShapeError: If there is no call, or their tokens are not as many.

    Source:
        Clark et al. 2019 (arXiv:1906.04341), section 6; Lin 1991.

    Example:
        >>> from manyheads.lens import of_weights
        >>> heads = torch.stack([torch.eye(2), torch.eye(2), torch.eye(2).flip(0)])
        >>> redundancy([of_weights(heads[None])])
        tensor([[0.0000, 0.0000, 0.6931],
                [0.0000, 0.0000, 0.6931],
                [0.6931, 0.6931, 0.0000]])
    """
    check_calls(calls)
    lengths = {(call.call.q.shape[0], call.call.q.shape[2], call.call.k.shape[2]) for call in calls}
    if len(lengths) != 1:
        raise ShapeError(
            f"calls must be of as many sequences, queries and keys; got {sorted(lengths)}. Choose "
            f"layers that read the same tokens."
        )
    ((batch, q_len, kv_len),) = lengths
    heads = sum(call.call.q.shape[1] for call in calls)
    step = max(1, SCORES // (batch * heads * kv_len))
    divergence = torch.zeros(heads, heads, dtype=torch.float64)
    for first in range(0, q_len, step):
        rows = slice(first, min(first + step, q_len))
        weights = _with_sink(torch.cat([call.weights(rows) for call in calls], dim=1))
        entropy = torch.special.entr(weights).sum(dim=-1)
        for head in range(heads):
            mixed = torch.special.entr((weights + weights[:, head, None]) / 2).sum(dim=-1)
            apart = mixed - (entropy + entropy[:, head, None]) / 2
            divergence[head] += apart.sum(dim=(0, 2)).to("cpu", torch.float64)
    return (divergence / (batch * q_len)).clamp(min=0.0).float()


def _with_sink(weights: Tensor) -> Tensor:
    """With a further key that has what is missing to 1: a learned sink's share."""
    missing = (1 - weights.sum(dim=-1, keepdim=True)).clamp(min=0.0)
    return torch.cat((weights, missing), dim=-1)
