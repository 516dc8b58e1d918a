"""What a head does, in a few numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.lens.maps import Map, check_values, check_weights


@dataclass(frozen=True)
class HeadSummary:
    """How one head spreads its weight; means over the queries that see anybody.

    Args:
        layer: The name of its layer.
        head: Its number.
        effective_keys: The exponential of a row's entropy, in keys: 1 looks at one key, n spreads
            evenly over n.
        peak: The largest weight of a row, 0 to 1.
        strongest: For each query the key with the largest weight; -1 if it sees nobody.
    """

    layer: str
    head: int
    effective_keys: float
    peak: float
    strongest: tuple[int, ...]


def summarize_heads(
    weights: Mapping[str, Float[Tensor, "_heads _q_len _kv_len"]],
) -> list[HeadSummary]:
    """Sum up each head by itself; an average over heads would say nothing of any of them.

    Args:
        weights: By the name of a layer; one sample, after the softmax.

    Returns:
        One summary a head, in the order of layers and heads. A head none of whose queries sees
        anybody has 0 effective keys and peak 0.

    Raises:
        ShapeError: If a rank is not 3, or something is empty.
        OptionError: If weights are not finite or not between 0 and 1.

    Example:
        >>> sharp, flat = torch.eye(4), torch.full((4, 4), 0.25)
        >>> one, other = summarize_heads({"layer": torch.stack([sharp, flat])})
        >>> one.effective_keys, other.effective_keys, one.strongest
        (1.0, 4.0, (0, 1, 2, 3))
    """
    summaries = []
    for layer, array in check_weights(weights).items():
        check_values([Map(layer, head, each) for head, each in enumerate(array)], "unit")
        summaries += [
            _summarize(layer, head, torch.from_numpy(each).double())
            for head, each in enumerate(array)
        ]
    return summaries


def _summarize(layer: str, head: int, weights: Tensor) -> HeadSummary:
    seen = weights.sum(dim=-1) > 0
    if not seen.any():
        return HeadSummary(layer, head, 0.0, 0.0, (-1,) * len(weights))
    entropy = torch.special.entr(weights[seen]).sum(dim=-1).mean()
    strongest = torch.where(seen, weights.argmax(dim=-1), -1)
    return HeadSummary(
        layer,
        head,
        effective_keys=math.exp(entropy),
        peak=float(weights[seen].amax(dim=-1).mean()),
        strongest=tuple(strongest.tolist()),
    )
