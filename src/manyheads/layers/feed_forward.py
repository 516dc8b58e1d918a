"""The part of a layer that thinks about each token by itself."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import OptionError, is_named
from manyheads.layers.initialise import Init, initialise
from manyheads.shapes import check_count, check_probability

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """Widen each token, bend it, and narrow it again: W_2 f(W_1 x).

    With "swiglu" a third matrix gates the widened token: W_2 (silu(W_g x) * W_1 x).

    Args:
        d_model: Width of the stream.
        d_hidden: Width in between; 4 times `d_model` is usual.
        activation: What f is; "gelu_tanh" is GELU as GPT-2 approximates it.
        dropout: Share of the widened token to drop in training.
        bias: Whether the maps add a bias.
        init: How the weights begin.
        device: Where the weights go.
        dtype: Of what type they are.

    Source:
        Vaswani et al. 2017, eq. 2 (arXiv:1706.03762); SwiGLU, Shazeer 2020 (arXiv:2002.05202).

    Example:
        >>> import torch, manyheads as mh
        >>> mh.FeedForward(16, 64, activation="gelu")(torch.randn(2, 3, 16)).shape
        torch.Size([2, 3, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        init: Init = "xavier",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("d_model", d_model)
        check_count("d_hidden", d_hidden)
        if not is_named(activation, ACTIVATIONS):
            raise OptionError(
                f"activation must be one of {', '.join(ACTIVATIONS)}; got "
                f"activation={activation!r}. Choose one."
            )
        self.activation = activation
        self.init: Init = init
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.up = nn.Linear(d_model, d_hidden, bias=bias, **place)
        self.gate = (
            nn.Linear(d_model, d_hidden, bias=bias, **place) if activation == "swiglu" else None
        )
        self.down = nn.Linear(d_hidden, d_model, bias=bias, **place)
        self.dropout = nn.Dropout(check_probability("dropout", dropout))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for linear in self.children():
            if isinstance(linear, nn.Linear):
                initialise(linear, self.init)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        """Each token of x, thought about."""
        bend = ACTIVATIONS[self.activation]
        hidden = bend(self.up(x)) if self.gate is None else bend(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))
