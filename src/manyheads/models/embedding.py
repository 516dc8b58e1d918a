"""Tokens become a stream."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import DTypeError, OptionError, ShapeError
from manyheads.models.config import TransformerConfig
from manyheads.positions import Learned, Sinusoidal
from manyheads.shapes import Positions, check_probability, check_tensor, values_are_cheap


class Embedding(nn.Module):
    """Tokens as vectors, and where they stand.

    Args:
        tokens: A vector for each token; two embeddings may share them.
        positions: Adds to each vector where it stands; None if attention itself knows.
        dropout: Share to drop in training.
        scale: Multiplies the vectors; None = sqrt(d_model), as in the paper of 2017.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: Sinusoidal | Learned | None,
        dropout: float,
        *,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.scale = math.sqrt(tokens.embedding_dim) if scale is None else scale
        self.dropout = nn.Dropout(check_probability("dropout", dropout))

    def forward(
        self, ids: Int[Tensor, "batch length"], positions: Positions = None
    ) -> Float[Tensor, "batch length d_model"]:
        """The stream that these tokens begin."""
        x = self.tokens(ids)
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            x = self.positions(x, positions)
        return self.dropout(x)


def positions_of(config: TransformerConfig, place: dict[str, Any]) -> Sinusoidal | Learned | None:
    """What tells the tokens of a stream where they are; None if attention itself knows."""
    if config.positions == "sinusoidal":
        return Sinusoidal(config.d_model)
    if config.positions == "learned":
        return Learned(config.max_length, config.d_model, **place)
    return None


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Refuse what are not token ids of a vocabulary."""
    if check_tensor(name, ids).dtype not in (torch.int32, torch.int64):
        raise DTypeError(
            f"{name} must be int32 or int64 token ids; got {name}={ids.dtype}. Encode the text "
            f"with a vocabulary first."
        )
    if ids.ndim != 2:
        raise ShapeError(
            f"{name} must be (batch, length); got shape {tuple(ids.shape)}. For one sequence write "
            f"{name}[None]."
        )
    if (
        values_are_cheap(ids)
        and ids.numel()
        and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary
    ):
        raise OptionError(
            f"{name} must hold token ids from 0 to {vocabulary - 1}; got {int(ids.min())} to "
            f"{int(ids.max())}. Is it encoded with the model's own vocabulary?"
        )
