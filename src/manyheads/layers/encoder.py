"""A layer whose tokens read one another."""

from typing import Any

import torch

from manyheads.layers.block import Block
from manyheads.layers.feed_forward import Activation, FeedForward
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Norm, Residual
from manyheads.positions import Rotary


class EncoderLayer(Block):
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
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            MultiHeadAttention(
                d_model,
                num_heads,
                num_kv_heads=num_kv_heads,
                dropout=attention_dropout,
                rotary=rotary,
                bias=bias,
                **place,
            ),
            FeedForward(
                d_model, d_hidden, activation=activation, dropout=dropout, bias=bias, **place
            ),
            Residual(d_model, norm=norm, dropout=dropout, **place),
            Residual(d_model, norm=norm, dropout=dropout, **place),
        )
