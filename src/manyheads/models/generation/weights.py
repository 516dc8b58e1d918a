"""The weights of a whole text from those of its steps."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError


def assemble_weights(
    steps: Sequence[Tensor],
) -> Float[Tensor, "batch heads length kv_total"]:
    """One map of a text that was read in steps through a cache, as one pass would give it.

    Each step shows the weights of its own tokens on the last keys of the text so far; what came
    before them, or comes later, is weighed 0. Weights of a context are joined by
    ``torch.cat(steps, dim=2)``.

    Args:
        steps: Weights (batch, heads, q_len, kv_len) of one self-attention, from `with_weights` or
            `weights_into`, in order. Not through a `RingCache` with `keep_first`, whose keys do
            not stand side by side.

    Returns:
        Weights (batch, heads, all queries, all keys).

    Raises:
        ShapeError: If there is no step, or steps are not of one text.

    Example:
        >>> import torch, manyheads as mh
        >>> from manyheads.models.generation import assemble_weights
        >>> layer, cache = mh.MultiHeadAttention(16, 4), mh.GrowingCache()
        >>> x, mask = torch.randn(1, 5, 16), mh.Causal()
        >>> parts = x.split([3, 1, 1], dim=1)
        >>> steps = [layer.with_weights(part, mask=mask, cache=cache)[1] for part in parts]
        >>> whole = layer.with_weights(x, mask=mask)[1]
        >>> torch.allclose(assemble_weights(steps), whole, atol=1e-6)
        True
    """
    if not steps or any(x.ndim != 4 or x.shape[:2] != steps[0].shape[:2] for x in steps):
        raise ShapeError(
            f"steps must be (batch, heads, q_len, kv_len) of one text; got shapes "
            f"{[tuple(x.shape) for x in steps]}. Give the weights of each step of one layer."
        )
    end = steps[0].shape[3] - steps[0].shape[2]  # what the cache held before
    total = end + sum(x.shape[2] for x in steps)
    rows = []
    for x in steps:
        end += x.shape[2]
        if x.shape[3] > end:
            raise ShapeError(
                f"steps must follow one another; got weights on {x.shape[3]} keys where the text "
                f"has {end}. Give every step, in order; for a context join them by torch.cat."
            )
        rows.append(torch.nn.functional.pad(x, (end - x.shape[3], total - end)))
    return torch.cat(rows, dim=2)
