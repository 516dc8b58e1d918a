"""A layer whose tokens read one another and a context."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache, CrossCache, GrowingCache
from manyheads.errors import CacheError, ShapeError
from manyheads.layers.checks import held_context
from manyheads.layers.feed_forward import Activation, FeedForward
from manyheads.layers.initialise import reset_children
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Norm, Residual
from manyheads.layers.stream import settle_cross, settle_self
from manyheads.masks import Bound, Causal, Mask
from manyheads.positions import Bias, Rotary
from manyheads.shapes import Positions

CAUSAL = Causal()


class LayerCache(NamedTuple):
    """What a decoder layer keeps between steps.

    Args:
        text: Keys and values of the tokens that were decoded.
        context: Keys and values of the context.

    Example:
        >>> import torch, manyheads as mh
        >>> layer, cache = mh.DecoderLayer(16, 4, 32).eval(), mh.LayerCache.new()
        >>> out = layer(torch.randn(1, 2, 16), torch.randn(1, 5, 16), cache=cache)
        >>> cache.text.length, cache.context.length
        (2, 5)
    """

    text: Cache
    context: CrossCache

    @classmethod
    def new(cls, kind: Callable[[], Cache] = GrowingCache) -> "LayerCache":
        """An empty one, of a kind for its text."""
        return cls(kind(), CrossCache())

    def reorder(self, index: Tensor) -> None:
        """Let row i continue what row ``index[i]`` was."""
        self.text.reorder(index)
        self.context.reorder(index)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to a context, then a feed-forward network.

    Args:
        d_model: Width of the stream.
        num_heads: Query heads.
        d_hidden: Width inside of the feed-forward network.
        num_kv_heads: Key and value heads; None = `num_heads`.
        d_context: Width of the context; None = `d_model`.
        dropout: Share of each sublayer's output, and of the hidden layer, to drop in training.
        attention_dropout: Share of the attention weights to drop in training.
        norm: "post", as in the paper of 2017, or "pre".
        activation: Of the feed-forward network.
        bias: Whether linear maps add a bias.
        rotary: Turns queries and keys of the self-attention by their positions.
        device: Where the weights go.
        dtype: Of what type they are.

    Source:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762).

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.DecoderLayer(64, 4, 128)
        >>> layer(torch.randn(1, 3, 64), torch.randn(1, 7, 64)).shape
        torch.Size([1, 3, 64])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_hidden: int = 2048,
        *,
        num_kv_heads: int | None = None,
        d_context: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        norm: Norm = "post",
        activation: Activation = "relu",
        bias: bool = True,
        rotary: Rotary | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attention = MultiHeadAttention(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            dropout=attention_dropout,
            rotary=rotary,
            bias=bias,
            **place,
        )
        self.cross_attention = MultiHeadAttention(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            d_context=d_context,
            dropout=attention_dropout,
            bias=bias,
            **place,
        )
        self.feed_forward = FeedForward(
            d_model, d_hidden, activation=activation, dropout=dropout, bias=bias, **place
        )
        self.self_residual = Residual(d_model, norm=norm, dropout=dropout, **place)
        self.cross_residual = Residual(d_model, norm=norm, dropout=dropout, **place)
        self.feed_forward_residual = Residual(d_model, norm=norm, dropout=dropout, **place)

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        reset_children(self)

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch kv_len d_context"] | None = None,
        *,
        mask: Mask | Bound | Tensor | None = CAUSAL,
        context_mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        cache: LayerCache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """The stream after this layer.

        Args:
            x: The stream.
            context: What the cross-attention reads; may be left out once the cache holds it.
            mask: Who may see whom within x; with a cache it describes the new tokens only.
            context_mask: Who of x may see whom of the context.
            positions: Where the tokens of x stand; below 0 = no token.
            cache: Holds keys and values of earlier calls, and is given this call's.
            bias: Added to the scores of the self-attention: a tensor, or an object that reads
                positions.
            coordinates: Where the tokens of x stand along the axes of the rotary; see `Rotary`.
            weights_into: Receives the weights of the self-attention, then of the cross-attention.
        """
        text, outside = _parts(cache)
        if context is None and (outside is None or outside.wants_keys):
            raise ShapeError(
                "context must be given until a cache holds it; got context=None. Call "
                "layer(x, context); a stream that attends to itself alone goes through an "
                "EncoderLayer."
            )
        self.self_attention.check(x, cache=text)
        self.cross_attention.check(x, context, cache=outside)
        x, bound = settle_self(x, mask, positions, text)
        absent = None if bound is None else bound.q.absent
        if absent is not None:
            held = held_context(outside, x, context)
            _, context, context_mask = settle_cross(
                x,
                context if held is None else None,
                context_mask,
                held=held and held.tokens,
                absent=absent,
            )

        def attend(x: Tensor) -> Tensor:
            return self.self_attention(
                x,
                mask=bound,
                cache=text,
                bias=bias,
                coordinates=coordinates,
                weights_into=weights_into,
            )

        def look_up(x: Tensor) -> Tensor:
            return self.cross_attention(
                x, context, mask=context_mask, cache=outside, weights_into=weights_into
            )

        x = self.self_residual(x, attend)
        x = self.cross_residual(x, look_up)
        return self.feed_forward_residual(x, self.feed_forward)

    def with_weights(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch kv_len d_context"] | None = None,
        *,
        mask: Mask | Bound | Tensor | None = CAUSAL,
        context_mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        cache: LayerCache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch q_len d_model"], Tensor, Tensor]:
        """Do what a call of the layer does, and return both attentions' weights too."""
        weights: list[Tensor] = []
        out = self(
            x,
            context,
            mask=mask,
            context_mask=context_mask,
            positions=positions,
            cache=cache,
            bias=bias,
            coordinates=coordinates,
            weights_into=weights,
        )
        return out, weights[0], weights[1]


def _parts(cache: LayerCache | None) -> tuple[Cache | None, CrossCache | None]:
    if cache is None:
        return None, None
    if not isinstance(cache, LayerCache):
        raise CacheError(
            f"cache of a decoder layer must be a LayerCache; got cache={type(cache).__name__}. It "
            f"holds the text and the context: LayerCache.new()."
        )
    return cache
