"""A layer whose tokens read one another."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache
from manyheads.layers.feed_forward import Activation, FeedForward
from manyheads.layers.initialise import reset_children
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Norm, Residual
from manyheads.layers.stream import settle_self
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias, Rotary
from manyheads.shapes import Positions


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each added to the stream.

    Under `Causal()` and with a cache it is the layer of a decoder-only model.

    Args:
        d_model: Width of the stream.
        num_heads: Query heads.
        d_hidden: Width inside of the feed-forward network.
        num_kv_heads: Key and value heads; None = `num_heads`.
        dropout: Share of each sublayer's output, and of the hidden layer, to drop in training.
        attention_dropout: Share of the attention weights to drop in training.
        norm: "post", as in the paper of 2017, or "pre".
        activation: Of the feed-forward network.
        bias: Whether linear maps add a bias.
        rotary: Turns queries and keys by their positions.
        device: Where the weights go.
        dtype: Of what type they are.

    Source:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762).

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.EncoderLayer(64, 4, 128)
        >>> keep = torch.tensor([[True, True, False]])
        >>> layer(torch.randn(1, 3, 64), mask=mh.Padding(keep)).shape
        torch.Size([1, 3, 64])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_hidden: int = 2048,
        *,
        num_kv_heads: int | None = None,
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
        self.feed_forward = FeedForward(
            d_model, d_hidden, activation=activation, dropout=dropout, bias=bias, **place
        )
        self.attention_residual = Residual(d_model, norm=norm, dropout=dropout, **place)
        self.feed_forward_residual = Residual(d_model, norm=norm, dropout=dropout, **place)

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        reset_children(self)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """The stream after this layer.

        Args:
            x: The stream.
            mask: Who may see whom; with a cache it describes the new tokens only.
            positions: Where the tokens of x stand; below 0 = no token.
            cache: Holds keys and values of earlier calls, and is given this call's.
            bias: Added to the scores of the self-attention: a tensor, or an object that reads
                positions.
            coordinates: Where the tokens of x stand along the axes of the rotary; see `Rotary`.
            weights_into: Receives the weights.
        """
        self.self_attention.check(x, cache=cache)
        x, bound = settle_self(x, mask, positions, cache)

        def attend(x: Tensor) -> Tensor:
            return self.self_attention(
                x,
                mask=bound,
                cache=cache,
                bias=bias,
                coordinates=coordinates,
                weights_into=weights_into,
            )

        x = self.attention_residual(x, attend)
        return self.feed_forward_residual(x, self.feed_forward)

    def with_weights(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
    ) -> tuple[
        Float[Tensor, "batch length d_model"], Float[Tensor, "batch num_heads length kv_len"]
    ]:
        """Do what a call of the layer does, and return each head's weights too."""
        weights: list[Tensor] = []
        out = self(
            x,
            mask=mask,
            positions=positions,
            cache=cache,
            bias=bias,
            coordinates=coordinates,
            weights_into=weights,
        )
        return out, weights[0]
