"""Self-attention and a feed-forward network, joined to the stream."""

from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache
from manyheads.layers.feed_forward import FeedForward
from manyheads.layers.initialise import reset_children
from manyheads.layers.latent import LatentAttention
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Residual
from manyheads.layers.stream import settle_self
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias
from manyheads.shapes import Positions


class Block(nn.Module):
    """A layer whose tokens read one another, made of its parts.

    Under `Causal()` and with a cache it is the layer of a decoder-only model.

    Args:
        self_attention: How tokens read one another: any attention of this package.
        feed_forward: What each makes of it.
        attention_residual: How the attention joins the stream.
        feed_forward_residual: How the feed-forward network does.

    Example:
        >>> import torch, manyheads as mh
        >>> from manyheads.layers import Block, Residual
        >>> attention = mh.MultiHeadAttention(16, 4, num_kv_heads=1, bias=False)
        >>> thought = mh.FeedForward(16, 40, activation="swiglu", bias=False)
        >>> norms = (Residual(16, norm="pre", kind="rms") for _ in range(2))
        >>> Block(attention, thought, *norms)(torch.randn(1, 3, 16), mask=mh.Causal()).shape
        torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention | LatentAttention,
        feed_forward: FeedForward,
        attention_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.attention_residual = attention_residual
        self.feed_forward_residual = feed_forward_residual

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
