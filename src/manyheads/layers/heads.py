"""Streams of tokens as heads of queries, keys and values."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from manyheads.cache import Cache
from manyheads.errors import ShapeError
from manyheads.layers.checks import (
    checked_head_dim,
    checked_kv_heads,
    checked_rotary,
    held_context,
)
from manyheads.layers.norm import make_norm
from manyheads.layers.projections import (
    PackedLinear,
    Projections,
    check_projections,
    convert_state,
)
from manyheads.layers.stream import masked_like, settle_cross, settle_self
from manyheads.layers.turning import append, places_among, reach_of, turn_all, turn_new
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias, Rotary
from manyheads.shapes import Positions, check_count

Placed = tuple[Tensor, Tensor, Tensor, Tensor, Bound | None]
"""The stream without what its absent tokens hold; q, k, v; and who may see whom."""


class Heads(nn.Module):
    """The half of an attention layer before the scores: it projects, normalises, turns and caches.

    `MultiHeadAttention` tells what each argument means.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None,
        head_dim: int | None,
        d_context: int | None,
        d_value: int | None,
        bias: bool,
        rotary: Rotary | None,
        qk_norm: Literal["rms", "layer"] | None,
        projections: Projections,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_model = check_count("d_model", d_model)
        self.num_heads = check_count("num_heads", num_heads)
        self.num_kv_heads = checked_kv_heads(num_heads, num_kv_heads)
        self.head_dim = checked_head_dim(d_model, num_heads, head_dim)
        self.d_context = d_model if d_context is None else check_count("d_context", d_context)
        self.d_value = self.d_context if d_value is None else check_count("d_value", d_value)
        self.projections = projections
        check_projections(projections, {self.d_model, self.d_context, self.d_value})

        place: dict[str, Any] = {"device": device, "dtype": dtype}
        widths = self.widths
        if projections == "packed":
            self.qkv_proj = PackedLinear(d_model, widths, bias=bias, **place)
        else:
            self.q_proj = nn.Linear(d_model, widths[0], bias=bias, **place)
            self.k_proj = nn.Linear(self.d_context, widths[1], bias=bias, **place)
            self.v_proj = nn.Linear(self.d_value, widths[2], bias=bias, **place)
        self.q_norm = make_norm(qk_norm, self.head_dim, **place)
        self.k_norm = make_norm(qk_norm, self.head_dim, **place)
        self.rotary = checked_rotary(rotary, self.head_dim)
        self.register_load_state_dict_pre_hook(_convert)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Features of all queries, keys and values of a token."""
        kv_width = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv_width, kv_width

    def _self(
        self,
        x: Tensor,
        mask: Mask | Bound | Tensor | None,
        positions: Positions,
        cache: Cache | None,
        coordinates: Tensor | None,
    ) -> Placed:
        if not self.d_model == self.d_context == self.d_value:
            raise ShapeError(
                f"context must be given to a layer that reads another width than d_model="
                f"{self.d_model}; got none, d_context={self.d_context}, d_value={self.d_value}. "
                f"Call layer(x, context) or layer(x, context, value)."
            )
        x, bound = settle_self(x, mask, positions, cache)
        if self.projections == "packed":
            q, k, v = self.qkv_proj.project(x, 0, 3)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        unturned, k, v = self.q_norm(self._split(q)), self.k_norm(self._split(k)), self._split(v)
        q, k = turn_new(self.rotary, unturned, k, bound, cache, coordinates)
        if cache is not None:
            k, v, bound = append(cache, k, v, bound)
        if self.rotary is not None:
            q, k = turn_all(self.rotary, unturned, q, k, bound, cache)
        return x, q, k, v, bound

    def _cross(
        self,
        x: Tensor,
        context: Tensor | None,
        value: Tensor | None,
        mask: Mask | Bound | Tensor | None,
        positions: Positions,
        context_positions: Positions,
        cache: Cache | None,
        bias: Tensor | Bias | None,
    ) -> Placed:
        held = held_context(cache, x, context)
        if held is not None:
            context = None
        x, context, bound = settle_cross(
            x,
            context,
            mask,
            positions,
            context_positions,
            held and held.tokens,
            by_position=isinstance(bias, Bias),
        )
        q = self.q_norm(self._split(self._project(x, 0)))
        if held is not None:
            k, v = held.k, held.v
        else:
            assert context is not None
            k, v = self._context_heads(context, value, bound)
            if self.rotary is not None:
                reach = reach_of(self.rotary, k, None if bound is None else bound.kv)
                k = self.rotary(k, context_positions, length=reach)
            if cache is not None:
                cache.append(k, v, None if bound is None else bound.kv)
        if self.rotary is not None:
            kv = held.tokens if held is not None else None if bound is None else bound.kv
            places = places_among(kv, positions, q.shape[2], k.shape[2])
            q = self.rotary(q, places, length=reach_of(self.rotary, k, kv))
        return x, q, k, v, bound

    def _context_heads(
        self, context: Tensor, value: Tensor | None, bound: Bound | None
    ) -> tuple[Tensor, Tensor]:
        if value is not None:
            k, v = self._project(context, 1), self._project(masked_like(value, bound), 2)
        elif self.projections == "packed":
            k, v = self.qkv_proj.project(context, 1, 3)
        else:
            k, v = self.k_proj(context), self.v_proj(context)
        return self.k_norm(self._split(k)), self._split(v)

    def _project(self, x: Tensor, which: int) -> Tensor:
        if self.projections == "packed":
            return self.qkv_proj.project(x, which, which + 1)[0]
        return (self.q_proj, self.k_proj, self.v_proj)[which](x)

    def _split(self, x: Tensor) -> Tensor:
        # (batch, length, heads * head_dim) -> (batch, heads, length, head_dim)
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        )


def _convert(module: Heads, state: dict[str, Any], prefix: str, *_: object) -> None:
    convert_state(state, prefix, module.widths, module.projections == "packed")
