"""Fewer key and value heads for a layer that was trained with more."""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.layers.checks import checked_kv_heads
from manyheads.layers.differential import DifferentialAttention, check_pairs
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.projections import PackedLinear
from manyheads.masks import Bound, Mask


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
    checked_kv_heads(layer.num_kv_heads, num_kv_heads)
    if isinstance(layer, DifferentialAttention):
        check_pairs("num_kv_heads", num_kv_heads)
    grouped = copy.deepcopy(layer).eval()
    before = grouped(x, context, mask=mask)
    old, grouped.num_kv_heads = grouped.num_kv_heads, num_kv_heads
    if grouped.projections == "packed":
        grouped.qkv_proj = _pooled_pack(grouped.qkv_proj, old, grouped.widths)
    else:
        grouped.k_proj = _pooled_linear(grouped.k_proj, old, num_kv_heads)
        grouped.v_proj = _pooled_linear(grouped.v_proj, old, num_kv_heads)
    after = grouped(x, context, mask=mask)
    error = (after - before).norm() / before.norm()
    return Grouped(grouped.train(layer.training), float(error))


def _pooled(rows: Tensor, old: int, new: int) -> Tensor:
    """(old heads * head_dim, ...) to (new heads * head_dim, ...)."""
    return rows.unflatten(0, (new, old // new, -1)).mean(dim=1).flatten(0, 1)


def _pooled_linear(linear: nn.Linear, old: int, new: int) -> nn.Linear:
    weight = _pooled(linear.weight, old, new)
    pooled = nn.Linear(
        weight.shape[1], weight.shape[0], linear.bias is not None, weight.device, weight.dtype
    )
    pooled.weight.copy_(weight)
    if linear.bias is not None:
        pooled.bias.copy_(_pooled(linear.bias, old, new))
    return pooled


def _pooled_pack(linear: PackedLinear, old: int, widths: tuple[int, int, int]) -> PackedLinear:
    def pooled(rows: Tensor) -> Tensor:
        q, k, v = rows.split(linear.widths)
        new = old * widths[1] // k.shape[0]
        return torch.cat((q, _pooled(k, old, new), _pooled(v, old, new)))

    weight = linear.weight
    pack = PackedLinear(
        weight.shape[1],
        widths,
        bias=linear.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    pack.weight.copy_(pooled(weight))
    if linear.bias is not None:
        pack.bias.copy_(pooled(linear.bias))
    return pack
