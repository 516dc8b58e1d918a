"""Multi-head attention: weights around one call of `attention`."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache, Cached, CrossCache
from manyheads.errors import CacheError, DTypeError, OptionError, ShapeError
from manyheads.functional import attention, attention_with_weights
from manyheads.layers.initialise import Init, initialise
from manyheads.layers.projections import (
    PackedLinear,
    Projections,
    check_projections,
    convert_state,
)
from manyheads.layers.stream import settle_cross, settle_self
from manyheads.masks import Bound, Mask
from manyheads.positions import Rotary
from manyheads.shapes import Positions, check_count, check_probability, head_counts


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
        bias: Whether the projections add a bias.
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
        bias: bool = True,
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
        self.num_kv_heads = _checked_kv_heads(num_heads, num_kv_heads)
        self.head_dim = _checked_head_dim(d_model, num_heads, head_dim)
        self.d_context = d_model if d_context is None else check_count("d_context", d_context)
        self.d_value = self.d_context if d_value is None else check_count("d_value", d_value)
        self.dropout = check_probability("dropout", dropout)
        self.projections = projections
        self.init: Init = init
        check_projections(projections, {self.d_model, self.d_context, self.d_value})

        place: dict[str, Any] = {"device": device, "dtype": dtype}
        kv_width = self.num_kv_heads * self.head_dim
        self._widths = (num_heads * self.head_dim, kv_width, kv_width)
        if projections == "packed":
            self.qkv_proj = PackedLinear(d_model, self._widths, bias=bias, **place)
        else:
            self.q_proj = nn.Linear(d_model, self._widths[0], bias=bias, **place)
            self.k_proj = nn.Linear(self.d_context, kv_width, bias=bias, **place)
            self.v_proj = nn.Linear(self.d_value, kv_width, bias=bias, **place)
        self.out_proj = nn.Linear(self._widths[0], d_model, bias=bias, **place)
        self.q_norm = _norm(qk_norm, self.head_dim, **place)
        self.k_norm = _norm(qk_norm, self.head_dim, **place)
        self.rotary = _checked_rotary(rotary, self.head_dim)
        self.output_dropout = nn.Dropout(check_probability("output_dropout", output_dropout))
        self.register_load_state_dict_pre_hook(_convert)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                initialise(module, self.init)

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
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Let each token of x take what it needs from x, or from a context.

        Args:
            x: The stream; its tokens ask.
            context: What is attended to; None means x itself.
            value: What is taken, if it is not what is attended to.
            mask: Who may see whom; with a cache it describes the new tokens only.
            positions: Where the tokens of x stand: None (0, 1, 2, ... or after the cache's), an
                int, or a tensor (length,) or (batch, length); below 0 = no token.
            context_positions: Where the tokens of the context stand.
            cache: Holds keys and values of earlier calls, and is given this call's.
            weights_into: Receives this call's weights, before dropout.

        Raises:
            ShapeError: If a stream has another shape than the layer was built for.
            MaskError: If the mask does not fit the tokens.
            CacheError: If the cache does not fit the call; it is then as it was.
        """
        self._check(x, context, value)
        crosses = context is not None or isinstance(cache, CrossCache)
        if crosses:
            q, k, v, bound = self._cross(
                x, context, value, mask, positions, context_positions, cache
            )
        else:
            q, k, v, bound = self._self(x, mask, positions, cache)
        dropout = self.dropout if self.training else 0.0
        if weights_into is None:
            mixed = attention(q, k, v, bound, dropout=dropout)
        else:
            mixed, weights = attention_with_weights(q, k, v, bound, dropout=dropout)
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
            weights_into=weights,
        )
        return out, weights[0]

    def _self(
        self,
        x: Tensor,
        mask: Mask | Bound | Tensor | None,
        positions: Positions,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor, Tensor, Bound | None]:
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
        q, k, v = self._split(q), self._split(k), self._split(v)
        q, k = self._normed(q, k)
        if self.rotary is not None:
            turn = self.rotary.at(None if bound is None else bound.q.position, like=q)
            q, k = turn(q), turn(k)
        if cache is None:
            return q, k, v, bound
        tokens = cache.follow(x.shape[1], x.device) if bound is None else bound.kv
        held = cache.append(k, v, tokens)
        return q, held.k, held.v, None if bound is None else bound.with_keys(held.tokens)

    def _cross(
        self,
        x: Tensor,
        context: Tensor | None,
        value: Tensor | None,
        mask: Mask | Bound | Tensor | None,
        positions: Positions,
        context_positions: Positions,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor, Tensor, Bound | None]:
        held = _held_context(cache, context)
        x, context, bound = settle_cross(
            x, context, mask, positions, context_positions, held and held.tokens
        )
        q = self._split(self._project(x, 0))
        if held is None:
            assert context is not None
            value = context if value is None else _masked_like(value, bound)
            k, v = self._split(self._project(context, 1)), self._split(self._project(value, 2))
            q, k = self._normed(q, k)
            if self.rotary is not None:
                k = self.rotary(k, context_positions)
            if cache is not None:
                tokens = None if bound is None else bound.kv
                cache.append(k, v, tokens)
        else:
            k, v = held.k, held.v
            q, _ = self._normed(q, k[:, :, :0])
        if self.rotary is not None:
            q = self.rotary(q, positions)
        return q, k, v, bound

    def _project(self, x: Tensor, which: int) -> Tensor:
        if self.projections == "packed":
            return self.qkv_proj.project(x, which, which + 1)[0]
        return (self.q_proj, self.k_proj, self.v_proj)[which](x)

    def _split(self, x: Tensor) -> Tensor:
        # (batch, length, heads * head_dim) -> (batch, heads, length, head_dim)
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)

    def _check(self, x: Tensor, context: Tensor | None, value: Tensor | None) -> None:
        _check_stream("x", x, self.d_model)
        if context is not None:
            _check_stream("context", context, self.d_context)
            if context.shape[0] != x.shape[0]:
                raise ShapeError(
                    f"x and context must have one batch size; got x={x.shape[0]}, "
                    f"context={context.shape[0]}. Expand the smaller one."
                )
        if value is not None:
            _check_stream("value", value, self.d_value)
            if context is None or value.shape[:2] != context.shape[:2]:
                got = None if context is None else tuple(context.shape[:2])
                raise ShapeError(
                    f"value must have the context's batch and length; got value="
                    f"{tuple(value.shape[:2])}, context={got}. Each key needs its value."
                )

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        )


def _check_stream(name: str, x: Tensor, width: int) -> None:
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"{name} must be a torch.Tensor; got {name}={type(x).__name__}. Convert it with "
            f"torch.as_tensor."
        )
    if x.ndim != 3 or x.shape[2] != width:
        raise ShapeError(
            f"{name} must be (batch, length, {width}); got shape {tuple(x.shape)}. Batch comes "
            f"first; add it with {name}[None] if there is none."
        )
    if not x.dtype.is_floating_point:
        raise DTypeError(
            f"{name} must be a floating-point tensor; got {name}={x.dtype}. Embed token ids first."
        )


def _held_context(cache: Cache | None, context: Tensor | None) -> Cached | None:
    if cache is None:
        return None
    if not isinstance(cache, CrossCache):
        raise CacheError(
            f"attention to a context must have a CrossCache; got {type(cache).__name__}. A "
            f"growing cache holds a text that attends to itself."
        )
    return None if cache.wants_keys and context is not None else cache.read()


def _masked_like(value: Tensor, bound: Bound | None) -> Tensor:
    if bound is None or bound.kv.absent is None:
        return value
    return value.masked_fill(bound.kv.absent[:, :, None], 0.0)


def _checked_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    if num_kv_heads is None:
        return num_heads
    check_count("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise OptionError(
            f"num_kv_heads must divide num_heads={num_heads}; got num_kv_heads={num_kv_heads}. "
            f"These do: {head_counts(num_heads)}."
        )
    return num_kv_heads


def _checked_head_dim(d_model: int, num_heads: int, head_dim: int | None) -> int:
    if head_dim is not None:
        return check_count("head_dim", head_dim)
    if d_model % num_heads:
        raise OptionError(
            f"num_heads must divide d_model={d_model}; got num_heads={num_heads}. These do: "
            f"{head_counts(d_model)}. Or give head_dim."
        )
    return d_model // num_heads


def _checked_rotary(rotary: Rotary | None, head_dim: int) -> Rotary | None:
    if rotary is not None and rotary.head_dim != head_dim:
        raise OptionError(
            f"rotary must turn heads of width head_dim={head_dim}; got "
            f"rotary.head_dim={rotary.head_dim}. Write Rotary({head_dim})."
        )
    return rotary


def _norm(
    kind: str | None,
    head_dim: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Module:
    if kind is None:
        return nn.Identity()
    if kind == "rms":
        return nn.RMSNorm(head_dim, device=device, dtype=dtype)
    if kind == "layer":
        return nn.LayerNorm(head_dim, device=device, dtype=dtype)
    raise OptionError(
        f"qk_norm must be None, 'rms' or 'layer'; got qk_norm={kind!r}. Leave it out for scores "
        f"of plain queries and keys."
    )


def _convert(module: MultiHeadAttention, state: dict[str, Any], prefix: str, *_: object) -> None:
    convert_state(state, prefix, module._widths, module.projections == "packed")
