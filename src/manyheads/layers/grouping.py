"""Fewer key and value heads for a layer that was trained with more."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.layers.differential import DifferentialAttention, check_pairs
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.masks import Bound, Mask
from manyheads.shapes import check_count, head_counts


class Grouped(NamedTuple):
    """A layer with fewer key and value heads, and what that cost.

    Args:
        layer: The new layer.
        error: Of its output, relative to that of the old one: |new - old| / |old|.
    """

    layer: MultiHeadAttention
    error: float


@torch.no_grad()
def to_grouped(
    layer: MultiHeadAttention,
    num_kv_heads: int,
    x: Float[Tensor, "batch q_len d_model"],
    context: Float[Tensor, "batch kv_len d_context"] | None = None,
    *,
    mask: Mask | Bound | Tensor | None = None,
) -> Grouped:
    """Make a layer with fewer key and value heads, each the mean of those that it stands for.

    Where heads of a group are alike nothing is lost. Elsewhere it is a beginning: Ainslie et al.
    train such a model for another 5 % of its steps. Queries, norms, rotary and all else are kept.

    Args:
        layer: The layer; it is left as it is.
        num_kv_heads: How many the new one has; a divisor of those of the old one.
        x: Tokens by which the error is measured, in eval mode.
        context: What they attend to, if not themselves.
        mask: Who may see whom.

    Raises:
        OptionError: If the heads cannot be grouped so.

    Source:
        Ainslie et al. 2023, section 2.1 (arXiv:2305.13245).

    Example:
        >>> import torch, manyheads as mh
        >>> layer, x = mh.MultiHeadAttention(64, 8), torch.randn(2, 10, 64)
        >>> grouped, error = mh.to_grouped(layer, 2, x, mask=mh.Causal())
        >>> grouped.num_kv_heads, 0 < error < 1
        (2, True)
    """
    if layer.num_kv_heads % check_count("num_kv_heads", num_kv_heads):
        raise OptionError(
            f"num_kv_heads must divide those of the layer, {layer.num_kv_heads}; got num_kv_heads="
            f"{num_kv_heads}. These do: {head_counts(layer.num_kv_heads)}."
        )
    if isinstance(layer, DifferentialAttention):
        check_pairs("num_kv_heads", num_kv_heads)
    grouped = copy.deepcopy(layer).eval()
    before = grouped(x, context, mask=mask)
    shares = layer.num_kv_heads // num_kv_heads

    def pool(rows: Tensor) -> Tensor:
        """(heads * head_dim, ...) of old heads to that of new ones."""
        return rows.unflatten(0, (num_kv_heads, shares, -1)).mean(dim=1).flatten(0, 1)

    def pool_pack(rows: Tensor) -> Tensor:
        q, k, v = rows.split(layer.widths)
        return torch.cat((q, pool(k), pool(v)))

    grouped.num_kv_heads = num_kv_heads
    if grouped.projections == "packed":
        _change(grouped.qkv_proj, pool_pack)
        grouped.qkv_proj.widths = grouped.widths
    else:
        _change(grouped.k_proj, pool)
        _change(grouped.v_proj, pool)
    after = grouped(x, context, mask=mask)
    error = (after - before).norm() / before.norm()
    return Grouped(grouped.train(layer.training), float(error))


def _change(linear: nn.Linear, rows: Callable[[Tensor], Tensor]) -> None:
    """Give a projection other rows, made of its own."""
    for name, old in list(linear.named_parameters()):
        setattr(linear, name, nn.Parameter(rows(old), requires_grad=old.requires_grad))
    linear.out_features = linear.weight.shape[0]
