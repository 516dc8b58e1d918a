"""The classes that PyTorch tutorials on attention build, with their signatures and mended.

They are thin: each holds one layer of this package, or calls one of its functions. What a tutorial
calls Q, K, V, d_k and n_head keeps that name here, and nowhere else in the package.

How ours differ from the code that tutorials print, and why:

- Key and value are used. (One packed projection of the query alone attends to itself, whatever
  context it is handed.)
- The weights that come back are those before dropout: each row sums to 1. (After dropout a heatmap
  shows what the dice did.)
- A query that sees nobody gets weights 0, output 0 before the last projection, and gradient 0.
  (Scores filled with -1e9 give it the mean of all values, and -1e9 is not a number of fp16; scores
  filled with -inf give it NaN, forward and backward.)
- A 0/1 mask may have two, three or four dimensions, and is refused where it would land on a wrong
  axis. It is never copied for each head.
- A wrong argument raises an error that says what to do. (``python -O`` removes an ``assert``.)
- Positions need no maximum length, and any width will do, odd ones too.

With the weights comes their cost: memory grows with q_len x kv_len. Where nobody looks at them,
take `manyheads.MultiHeadAttention`, which returns the output alone and reaches faster kernels.

Source:
    Vaswani et al. 2017 (arXiv:1706.03762).
"""

from jaxtyping import Float
from torch import Tensor, nn

from manyheads import layers
from manyheads.errors import OptionError, ShapeError
from manyheads.functional import attention_with_weights
from manyheads.layers.checks import check_stream
from manyheads.masks import Mask
from manyheads.masks.outside import from_zero_one_mask
from manyheads.positions import Sinusoidal
from manyheads.shapes import check_count, check_probability, check_tensor

__all__ = [
    "MultiHeadAttention",
    "PositionalEncoding",
    "ScaledDotProductAttention",
    "TransformerEncoderLayer",
    "from_zero_one_mask",
]


class ScaledDotProductAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V, with the weights.

    Args:
        d_k: Width of a query and of a key; the scores are divided by its square root.
        dropout: Share of the weights to drop in training.

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> import torch
        >>> Q, K, V = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3)
        >>> output, weights = ScaledDotProductAttention(8)(Q, K, V)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 3]), torch.Size([2, 5, 7]))
    """

    def __init__(self, d_k: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_k = check_count("d_k", d_k)
        self.dropout = check_probability("dropout", dropout)

    def forward(
        self,
        Q: Float[Tensor, "batch *heads q_len d_k"],
        K: Float[Tensor, "batch *heads kv_len d_k"],
        V: Float[Tensor, "batch *heads kv_len d_v"],
        mask: Mask | Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch *heads q_len d_v"], Float[Tensor, "batch *heads q_len kv_len"]]:
        """Mix for each query the values that it may see.

        Args:
            Q: Queries, with an axis of heads or without.
            K: Keys.
            V: Values; their width is their own.
            mask: One of ours, or 0/1 as in `from_zero_one_mask`.

        Returns:
            The output, and the weights before dropout.

        Raises:
            ShapeError: If the width of Q is not d_k, or shapes do not fit.
        """
        for name, tensor in (("Q", Q), ("K", K), ("V", V)):
            if check_tensor(name, tensor).ndim != Q.ndim or Q.ndim not in (3, 4):
                raise ShapeError(
                    f"{name} must be (batch, length, width) or (batch, heads, length, width), and "
                    f"Q, K and V alike; got shape {tuple(tensor.shape)}, Q {tuple(Q.shape)}. Split "
                    f"the heads first: x.unflatten(-1, (n_head, -1)).transpose(1, 2)."
                )
        if Q.shape[-1] != self.d_k:
            raise ShapeError(
                f"Q must have the width d_k={self.d_k}; got {Q.shape[-1]}. Build it with the width "
                f"of one head, d_model // n_head, not with d_model."
            )
        seen = _ours(mask, Q, K)
        has_heads = Q.ndim == 4
        if not has_heads:
            Q, K, V = Q[:, None], K[:, None], V[:, None]
        output, weights = attention_with_weights(
            Q, K, V, seen, scale=self.d_k**-0.5, dropout=self.dropout if self.training else 0.0
        )
        return (output, weights) if has_heads else (output[:, 0], weights[:, 0])


class MultiHeadAttention(nn.Module):
    """Several heads of attention side by side, with their weights.

    Args:
        d_model: Width of Q, K, V and of the output.
        n_head: How many heads; must divide `d_model`.
        dropout: Share of the weights to drop in training.
        num_heads: Another word for `n_head`; give one of the two.
        output_dropout: Share of the output to drop in training.

    Raises:
        OptionError: If the heads do not divide d_model; the message says which numbers do.

    Example:
        >>> import torch
        >>> layer = MultiHeadAttention(d_model=512, n_head=8)
        >>> x, memory = torch.randn(2, 10, 512), torch.randn(2, 12, 512)
        >>> output, weights = layer(x, memory, memory)
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 512]), torch.Size([2, 8, 10, 12]))
    """

    def __init__(
        self,
        d_model: int,
        n_head: int | None = None,
        dropout: float = 0.1,
        *,
        num_heads: int | None = None,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        heads = n_head if num_heads is None else num_heads
        if heads is None or (n_head is not None and num_heads is not None):
            raise OptionError(
                f"MultiHeadAttention must have n_head or num_heads; got n_head={n_head}, "
                f"num_heads={num_heads}. They are one number under two names: give it once."
            )
        self.attention = layers.MultiHeadAttention(
            d_model, heads, dropout=dropout, output_dropout=output_dropout
        )

    def forward(
        self,
        Q: Float[Tensor, "batch q_len d_model"],
        K: Float[Tensor, "batch kv_len d_model"],
        V: Float[Tensor, "batch kv_len d_model"],
        mask: Mask | Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch q_len d_model"], Float[Tensor, "batch n_head q_len kv_len"]]:
        """Let Q take what it needs of V, by what it finds in K.

        Args:
            Q: The stream that asks.
            K: What is searched; Q itself in self-attention, the encoder's output in a decoder.
            V: What is taken; mostly K itself.
            mask: One of ours, or 0/1 as in `from_zero_one_mask`.

        Returns:
            The output, and each head's weights before dropout.
        """
        for name, stream in (("Q", Q), ("K", K), ("V", V)):
            check_stream(name, stream, self.attention.d_model, self.attention.out_proj.weight)
        seen = _ours(mask, Q, K)
        if K is Q and V is Q:
            return self.attention.with_weights(Q, mask=seen)
        return self.attention.with_weights(Q, K, V, mask=seen)


class TransformerEncoderLayer(nn.Module):
    """Self-attention and a feed-forward network with ReLU, each added and normalised (post-norm).

    Args:
        d_model: Width of the stream.
        num_heads: How many heads; must divide `d_model`.
        dim_feedforward: Width inside of the feed-forward network.
        dropout: Share to drop in training: of weights, hidden layer and what is added.

    Example:
        >>> import torch
        >>> layer = TransformerEncoderLayer(d_model=64, num_heads=4, dim_feedforward=128)
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self, d_model: int, num_heads: int, dim_feedforward: int = 2048, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.layer = layers.EncoderLayer(
            d_model, num_heads, dim_feedforward, dropout=dropout, attention_dropout=dropout
        )

    def forward(
        self, x: Float[Tensor, "batch length d_model"], mask: Mask | Tensor | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """The stream after this layer; the mask is one of ours, or 0/1."""
        return self.layer(x, mask=self._ours(mask, x))

    def with_weights(
        self, x: Float[Tensor, "batch length d_model"], mask: Mask | Tensor | None = None
    ) -> tuple[
        Float[Tensor, "batch length d_model"], Float[Tensor, "batch num_heads length length"]
    ]:
        """Do what a call of the layer does, and return each head's weights too."""
        return self.layer.with_weights(x, mask=self._ours(mask, x))

    def _ours(self, mask: Mask | Tensor | None, x: Tensor) -> Mask | None:
        attention = self.layer.self_attention
        check_stream("x", x, attention.d_model, attention.out_proj.weight)
        return _ours(mask, x, x)


class PositionalEncoding(nn.Module):
    """Add to each token the sines and cosines of its position, then drop some features.

    Args:
        d_model: Width of the stream; odd or even.
        max_len: Taken because tutorials give it, and without effect: there is no table to run past.
        dropout: Share of the sum to drop in training.

    Example:
        >>> import torch
        >>> PositionalEncoding(d_model=5, max_len=10)(torch.zeros(1, 20, 5)).shape
        torch.Size([1, 20, 5])
    """

    def __init__(self, d_model: int, max_len: int = 5000, dropout: float = 0.1) -> None:
        super().__init__()
        check_count("max_len", max_len)
        self.encoding = Sinusoidal(d_model)
        self.dropout = nn.Dropout(check_probability("dropout", dropout))

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        """The stream, with its places written in."""
        return self.dropout(self.encoding(x))


def _ours(mask: Mask | Tensor | None, Q: Tensor, K: Tensor) -> Mask | None:
    if mask is None or isinstance(mask, Mask):
        return mask
    return from_zero_one_mask(mask, q_len=Q.shape[-2], kv_len=K.shape[-2])
