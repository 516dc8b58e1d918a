"""Weights that are given, and even ones, as calls that every measure takes."""

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional import Call, Statistics
from manyheads.lens.checks import check_call, check_tensor

_HIDES = -1000.0
"""A bias below it hides a pair, as masks that are added to the scores do."""

_NOTHING = -750.0
"""The logarithm of a weight of 0 whose pair is not hidden."""


def of_weights(weights: Float[Tensor, "batch heads q_len kv_len"]) -> Statistics:
    """Ask of written-out weights what is asked of calls: those of ``output_attentions``, say.

    Args:
        weights: After the softmax. Hidden are taken to be the rows and columns that are 0 in all
            heads, and the future, if nobody looks there.

    Raises:
        ShapeError: If they do not have four dimensions.
        OptionError: If a row sums neither to 1 nor to 0.

    Example:
        >>> of_weights(torch.eye(3)[None, None]).entropy()
        tensor([[[0., 0., 0.]]])
    """
    check_tensor("weights", weights)
    if weights.ndim != 4 or 0 in weights.shape[2:]:
        raise ShapeError(
            f"weights must be (batch, heads, q_len, kv_len); got shape {tuple(weights.shape)}. "
            f"Give one sample as weights[None]."
        )
    weights = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
    sums = weights.sum(dim=-1)
    off = torch.minimum((sums - 1).abs(), sums.abs())
    if not bool((off < 1e-2).all()) or bool((weights < 0).any()):
        raise OptionError(
            f"weights must be of 0 and more, each row with the sum 1, or 0 where it sees nobody; "
            f"got a sum of {float(sums.flatten()[off.flatten().argmax()]):.3g}. Apply the softmax "
            f"first, and take weights before dropout."
        )
    batch, heads, q_len, kv_len = weights.shape
    q, k = (weights.new_zeros(batch, count, n, 1) for count, n in ((heads, q_len), (1, kv_len)))
    bias = weights.log().clamp(min=_NOTHING).masked_fill(_hidden(weights), -torch.inf)
    return Statistics(Call(q, k, k, None, bias, 1.0, None, None, 0.0, "weights"))


def _hidden(weights: Tensor) -> Tensor:
    looked = weights.sum(dim=1, keepdim=True)
    hidden = (looked.sum(dim=-1, keepdim=True) == 0) | (looked.sum(dim=-2, keepdim=True) == 0)
    q_len, kv_len = weights.shape[-2:]
    future = torch.ones(q_len, kv_len, dtype=torch.bool, device=weights.device)
    future = future.triu(kv_len - q_len + 1)
    nobody = weights.sum(dim=-1, keepdim=True) == 0
    return hidden | nobody | future if not bool((looked * future).any()) else hidden | nobody


def uniform(call: Statistics) -> Statistics:
    """The same call with heads that spread evenly over all keys that they may see.

    What a measure says of it is the measure's baseline: what a head scores that chooses nothing.

    Example:
        >>> import manyheads as mh
        >>> q = k = v = torch.randn(1, 1, 4, 8)
        >>> uniform(mh.statistics(q, k, v, mh.Causal())).entropy().exp().round()
        tensor([[[1., 2., 3., 4.]]])
    """
    check_call(call)
    given = call.call
    bias = given.bias if isinstance(given.bias, Tensor) else None
    if bias is not None:
        bias = bias.detach()
        hidden = bias < _HIDES
        # A row whose every key is hidden by a finite number spreads evenly over all of them.
        lost = hidden.all(dim=-1, keepdim=True) & (bias > -torch.inf).all(dim=-1, keepdim=True)
        bias = torch.zeros_like(bias).masked_fill(hidden & ~lost, -torch.inf)
        bias = bias if bool(hidden.any()) else None
    q = torch.zeros_like(given.q[..., :1])
    k = torch.zeros_like(given.k[..., :1])
    return Statistics(given._replace(q=q, k=k, v=k, bias=bias, softcap=None, sink_logits=None))
