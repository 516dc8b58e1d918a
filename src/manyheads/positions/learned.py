"""One trained vector for each position, added to the stream."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from manyheads.errors import PositionError
from manyheads.positions.given import (
    as_tensor,
    check_stream,
    check_table_positions,
    is_plain_call,
    read_positions,
)
from manyheads.shapes import Positions, check_count


class Learned(nn.Module):
    """Add to each token the trained vector of its position: ``x + weight[positions]``.

    How ours differs: a position past the table is refused with the cure named, not by a failing
    index; positions start at 0 (BART and OPT start at 2); a position below 0 is no token: its row
    is left as it is and no vector learns from it.

    Args:
        max_length: Positions in the table: 0 to ``max_length - 1``, in tokens.
        d_model: Width of the stream, in features.
        device: Where the table is made.
        dtype: The dtype of the table.

    Source:
        Gehring et al. 2017, section 3.1 (arXiv:1705.03122); Vaswani et al. 2017, table 3 row E
        (arXiv:1706.03762). The spread at the start, 0.02, is that of BERT and GPT-2.

    Example:
        >>> layer = Learned(4, 2)
        >>> x = torch.zeros(1, 3, 2)
        >>> torch.equal(layer(x, positions=1)[0], layer.weight[1:4])
        True
    """

    def __init__(
        self,
        max_length: int,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("max_length", max_length)
        check_count("d_model", d_model)
        self.max_length = max_length
        self.d_model = d_model
        self.weight = nn.Parameter(torch.empty(max_length, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew: normal, with standard deviation 0.02."""
        if not self.weight.is_meta:  # where there is nothing to draw, and torch loads its compiler
            nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], positions: Positions = None
    ) -> Float[Tensor, "batch length d_model"]:
        """The stream with the vectors added, in the dtype of ``x``.

        Args:
            x: The stream.
            positions: Where the tokens stand: None for 0, 1, 2, ..., an int for the first of a
                run, or integers (length,) or (batch, length).

        Raises:
            ShapeError: If ``x`` is not (batch, length, d_model).
            DTypeError: If ``x`` is not of floats.
            PositionError: If the positions are not integers, one a token, or pass the table.
        """
        check_stream(x, self.d_model)
        batch, length, _ = x.shape
        given = read_positions(positions, batch=batch, length=length, device=x.device)
        if isinstance(given, Tensor) or given < 0:
            return x + self.table(as_tensor(given, length=length, device=x.device)).to(x.dtype)
        # A run is a slice, which needs no gather, forward or backward.
        self._check_reach(given + length - 1)
        return x + self.weight[given : given + length].to(x.dtype)

    def table(self, positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens d_model"]:
        """The vectors alone, of positions of any shape; zeros where there is no token."""
        check_table_positions(positions)
        # Values are read on the CPU only: elsewhere the question would stall the device.
        if positions.is_cpu and positions.numel() and is_plain_call(positions):
            self._check_reach(int(positions.max()))
        rows = F.embedding(positions.clamp(min=0).long(), self.weight)
        return rows.masked_fill((positions < 0).unsqueeze(-1), 0.0)

    def _check_reach(self, last: int) -> None:
        if last >= self.max_length:
            raise PositionError(
                f"positions must stay below max_length={self.max_length}; got positions={last}. "
                f"Build a longer table, shorten the input, or use Sinusoidal, which has no end."
            )

    def extra_repr(self) -> str:
        return f"{self.max_length}, {self.d_model}"
