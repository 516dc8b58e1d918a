"""How a sublayer joins the stream: normalised before it, or after."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.layers.norm import NormKind, norm_of
from manyheads.shapes import check_probability

Norm = Literal["post", "pre"]


class Residual(nn.Module):
    """x + f(norm(x)) with "pre"; norm(x + f(x)) with "post", as in the paper of 2017.

    Args:
        d_model: Width of the stream.
        norm: Where the normalisation stands.
        kind: Which it is: "layer", or "rms", which moves no mean.
        eps: Added to the variance.
        dropout: Share of what the sublayer adds to drop in training.
        device: Where the weights go.
        dtype: Of what type they are.

    Source:
        Vaswani et al. 2017, section 3.1 (arXiv:1706.03762); "pre", Xiong et al. 2020
        (arXiv:2002.04745); "rms", Zhang and Sennrich 2019 (arXiv:1910.07467).
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm: Norm = "post",
        kind: NormKind = "layer",
        eps: float = 1e-5,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if norm not in ("post", "pre"):
            raise OptionError(
                f"norm must be 'post' or 'pre'; got norm={norm!r}. The paper of 2017 has 'post'; "
                f"'pre' trains without warm-up."
            )
        self.where = norm
        self.norm = norm_of(kind)(d_model, eps=eps, device=device, dtype=dtype)
        self.dropout = nn.Dropout(check_probability("dropout", dropout))

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        self.norm.reset_parameters()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The stream after a sublayer."""
        if self.where == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))
