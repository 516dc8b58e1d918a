"""Multi-head attention: weights around one call of `attention`."""

from contextlib import nullcontext
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache, CrossCache, RingCache
from manyheads.errors import (
    PositionError,
    ShapeError,
)
from manyheads.functional import attention, attention_with_weights
from manyheads.layers.checks import (
    check_cache,
    check_same_tokens,
    check_stream,
    checked_head_dim,
    checked_kv_heads,
    checked_rotary,
    held_context,
)
from manyheads.layers.initialise import Init, initialise
from manyheads.layers.norm import LayerNorm, RMSNorm, make_norm
from manyheads.layers.projections import (
    PackedLinear,
    ProjectionBias,
    Projections,
    check_bias,
    check_projections,
    convert_state,
)
from manyheads.layers.stream import masked_like, settle_cross, settle_self
from manyheads.layers.streaming import check_counting, count_in_cache
from manyheads.layers.turning import places_among, reach_of, turned
from manyheads.masks import Bound, Mask, Tokens
from manyheads.positions import Bias, Rotary
from manyheads.shapes import Positions, check_count, check_probability


class MultiHeadAttention(nn.Module):
    """Attention of a stream to itself or to a context, by several heads side by side.

    Each head h has its own q_h = x W_q, k_h = c W_k, v_h = c W_v, where c is the context or x
    itself, and gives softmax(q_h k_h^T / sqrt(head_dim)) v_h; the heads' outputs stand side by
    side and pass through W_o.

    How ours differs from ``torch.nn.MultiheadAttention``: True in a mask means *may see*; the
    batch comes first; the output alone is returned, and `with_weights` returns each head's
    weights; a query that sees nobody gives W_o's bias, never NaN; padding may hold anything.

    Args:
        d_model: Width of x and of the output.
        num_heads: Query heads.
        num_kv_heads: Key and value heads: 1 is MQA, fewer than `num_heads` GQA; None = all.
        head_dim: Width of a head; None = ``d_model / num_heads``.
        d_context: Width of the context; None = `d_model`.
        d_value: Width of a value stream of its own; None = `d_context`.
        bias: Whether the projections add a bias; with "qkv" all but the output's do, as in Qwen2.
        dropout: Share of the weights to drop in training.
        output_dropout: Share of the output to drop in training.
        rotary: Turns queries and keys by their positions.
        qk_norm: Normalise each head's queries and keys, before rotary.
        projections: "separate" or "packed" into one matrix `qkv_proj`; each loads the other's
            state dict, and that of ``torch.nn.MultiheadAttention``.
        init: How the weights begin; see `initialise`.
        device: Where the weights go.
        dtype: Of what type they are.

    Raises:
        OptionError: If widths and heads do not fit; the message says which do.

    Source:
        Vaswani et al. 2017, section 3.2.2 (arXiv:1706.03762); MQA, Shazeer 2019
        (arXiv:1911.02150); GQA, Ainslie et al. 2023 (arXiv:2305.13245); QK norm, Henry et al. 2020
        (arXiv:2010.04245).

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.MultiHeadAttention(512, 8, num_kv_heads=2)
        >>> layer(torch.randn(2, 10, 512), mask=mh.Causal()).shape
        torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_context: int | None = None,
        d_value: int | None = None,
        bias: ProjectionBias = True,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        rotary: Rotary | None = None,
        qk_norm: Literal["rms", "layer"] | None = None,
        projections: Projections = "separate",
        init: Init = "xavier",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_count("d_model", d_model)
        self.num_heads = check_count("num_heads", num_heads)
        self.num_kv_heads = checked_kv_heads(num_heads, num_kv_heads)
        self.head_dim = checked_head_dim(d_model, num_heads, head_dim)
        self.d_context = d_model if d_context is None else check_count("d_context", d_context)
        self.d_value = self.d_context if d_value is None else check_count("d_value", d_value)
        self.dropout = check_probability("dropout", dropout)
        self.projections = projections
        self.init: Init = init
        check_projections(projections, {self.d_model, self.d_context, self.d_value})
        check_bias(bias)

        place: dict[str, Any] = {"device": device, "dtype": dtype}
        kv_width = self.num_kv_heads * self.head_dim
        self._widths = (num_heads * self.head_dim, kv_width, kv_width)
        if projections == "packed":
            self.qkv_proj = PackedLinear(d_model, self._widths, bias=bool(bias), **place)
        else:
            self.q_proj = nn.Linear(d_model, self._widths[0], bias=bool(bias), **place)
            self.k_proj = nn.Linear(self.d_context, kv_width, bias=bool(bias), **place)
            self.v_proj = nn.Linear(self.d_value, kv_width, bias=bool(bias), **place)
        self.out_proj = nn.Linear(self._widths[0], d_model, bias=bias is True, **place)
        self.q_norm = make_norm(qk_norm, self.head_dim, **place)
        self.k_norm = make_norm(qk_norm, self.head_dim, **place)
        self.rotary = checked_rotary(rotary, self.head_dim)
        factor = 1.0 if rotary is None else rotary.score_factor
        self._scale = factor * self.head_dim**-0.5
        self.output_dropout = nn.Dropout(check_probability("output_dropout", output_dropout))
        self.register_load_state_dict_pre_hook(_convert)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                initialise(module, self.init)
            elif isinstance(module, RMSNorm | LayerNorm):
                module.reset_parameters()

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch kv_len d_context"] | None = None,
        value: Float[Tensor, "batch kv_len d_value"] | None = None,
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        context_positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Let each token of x take what it needs from x, or from a context.

        Args:
            x: The stream; its tokens ask.
            context: What is attended to; None means x itself.
            value: What is taken, if it is not what is attended to.
            mask: Who may see whom; with a cache it describes the new tokens only.
            positions: Where the tokens of x stand: an int, or a tensor (length,) or (batch,
                length); below 0 = no token. None: 0, 1, 2, ..., or after the cache's; with a
                context, the last of it.
            context_positions: Where the tokens of the context stand.
            cache: Holds keys and values of earlier calls, and is given this call's.
            bias: Added to the scores, as in `attention`: a tensor, or an object that reads
                positions, such as `ALiBi(num_heads)`.
            coordinates: Where the tokens of x stand along the axes of the rotary; see `Rotary`.
            weights_into: Receives this call's weights, before dropout.

        Raises:
            ShapeError: If a stream has another shape than the layer was built for (and DTypeError,
                DeviceError likewise).
            PositionError: If positions do not fit the tokens, or are needed and missing.
            MaskError: If the mask does not fit the tokens.
            CacheError: If the cache does not fit the call; it is then as it was.
        """
        self.check(x, context, value, cache)
        crosses = context is not None or isinstance(cache, CrossCache)
        dropout = self.dropout if self.training else 0.0
        with nullcontext() if cache is None else cache.serving(self):
            if crosses:
                if coordinates is not None:
                    raise PositionError(
                        "coordinates must go to a layer that attends to itself; got coordinates "
                        "and a context. Give positions and context_positions."
                    )
                q, k, v, bound = self._cross(
                    x, context, value, mask, positions, context_positions, cache, bias
                )
            else:
                q, k, v, bound = self._self(x, mask, positions, cache, coordinates)
            scale = self._scale
            if weights_into is None:
                mixed = attention(q, k, v, bound, bias=bias, scale=scale, dropout=dropout)
            else:
                mixed, weights = attention_with_weights(
                    q, k, v, bound, bias=bias, scale=scale, dropout=dropout
                )
                weights_into.append(weights)
        del q, k, v  # Their memory serves the output, where no gradient needs them.
        return self.output_dropout(self.out_proj(mixed.transpose(1, 2).flatten(2)))

    def with_weights(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch kv_len d_context"] | None = None,
        value: Float[Tensor, "batch kv_len d_value"] | None = None,
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        context_positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch q_len d_model"], Float[Tensor, "batch num_heads q_len kv_len"]]:
        """Do what a call of the layer does, hooks included, and return each head's weights too.

        Example:
            >>> import torch, manyheads as mh
            >>> out, weights = mh.MultiHeadAttention(16, 4).with_weights(torch.randn(1, 3, 16))
            >>> weights.shape, torch.allclose(weights.sum(-1), torch.ones(1, 4, 3))
            (torch.Size([1, 4, 3, 3]), True)
        """
        weights: list[Tensor] = []
        out = self(
            x,
            context,
            value,
            mask=mask,
            positions=positions,
            context_positions=context_positions,
            cache=cache,
            bias=bias,
            coordinates=coordinates,
            weights_into=weights,
        )
        return out, weights[0]

    def _self(
        self,
        x: Tensor,
        mask: Mask | Bound | Tensor | None,
        positions: Positions,
        cache: Cache | None,
        coordinates: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Bound | None]:
        if not self.d_model == self.d_context == self.d_value:
            raise ShapeError(
                f"context must be given to a layer that reads another width than d_model="
                f"{self.d_model}; got none, d_context={self.d_context}, d_value={self.d_value}. "
                f"Call layer(x, context) or layer(x, context, value)."
            )
        rotary = self.rotary
        counting = cache if isinstance(cache, RingCache) and cache.keep_first else None
        if counting is not None and rotary is not None:
            check_counting(rotary, coordinates)
        x, bound = settle_self(x, mask, positions, cache)
        if self.projections == "packed":
            q, k, v = self.qkv_proj.project(x, 0, 3)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = self.q_norm(self._split(q)), self.k_norm(self._split(k)), self._split(v)
        unturned = q
        if rotary is not None and not rotary.depends_on_length:
            places = None if bound is None else bound.q.position
            turn = rotary.at(places, coordinates=coordinates, like=q)
            q, k = turn(q), turn(k)
        elif rotary is None and coordinates is not None:
            raise PositionError(
                "coordinates must go to a layer with a rotary; got coordinates and rotary=None. "
                "Build the layer with rotary=Rotary(head_dim, axes=...)."
            )
        tokens = None if bound is None else bound.kv
        if cache is not None:
            tokens = cache.follow(x.shape[1], x.device) if tokens is None else tokens
            k, v, tokens = cache.append(k, v, tokens)
            if counting is not None and rotary is not None:
                asking = Tokens(x.shape[1], 0, device=x.device) if bound is None else bound.q
                q, k = count_in_cache(rotary, counting, unturned, q, k, asking, tokens)
            bound = None if bound is None else bound.with_keys(tokens)
        if rotary is not None and rotary.depends_on_length:
            # Keys are cached unturned, for their turn changes as the text grows.
            q, k = turned(rotary, q, k, None if bound is None else bound.q, tokens)
        return q, k, v, bound

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
    ) -> tuple[Tensor, Tensor, Tensor, Bound | None]:
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
        return q, k, v, bound

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

    def check(
        self,
        x: Tensor,
        context: Tensor | None = None,
        value: Tensor | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Refuse what a call would refuse of its streams and its cache; whoever calls may too."""
        # Past attribute access, which would compute a parametrised weight.
        weight = self.out_proj._parameters.get("weight")
        check_stream("x", x, self.d_model, weight)
        if context is not None:
            check_stream("context", context, self.d_context, weight)
        if value is not None:
            check_stream("value", value, self.d_value, weight)
        check_same_tokens(x, context, value)
        check_cache(cache)

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        )


def _convert(module: MultiHeadAttention, state: dict[str, Any], prefix: str, *_: object) -> None:
    convert_state(state, prefix, module._widths, module.projections == "packed")
