"""Fixed waves, added to the stream."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import DTypeError
from manyheads.positions.angles import angle_dtype, check_base, cos_sin, frequencies
from manyheads.positions.given import (
    as_tensor,
    check_stream,
    check_table_positions,
    read_positions,
)
from manyheads.shapes import Positions, check_count


class Sinusoidal(nn.Module):
    """Add to each token the sines and cosines of its position.

    With p the position, d the width and i = 0, 1, ...::

        encoding[p, 2i]     = sin(p * base^(-2i / d))
        encoding[p, 2i + 1] = cos(p * base^(-2i / d))

    How ours differs: there is no maximum length and no table to store; an odd width works (its last
    sine stands alone); sines and cosines alternate, as in the paper (tensor2tensor puts all sines
    first); nothing is scaled or dropped. A position below 0 is no token: its row is left as it is.

    Args:
        d_model: Width of the stream, in features; odd or even.
        base: The slowest wave takes nearly ``2 pi base`` tokens.
        device: Taken so that all modules are built alike; there is no tensor to place.
        dtype: The dtype in which ``table`` answers; None means torch's default.

    Source:
        Vaswani et al. 2017, section 3.5 (arXiv:1706.03762).

    Example:
        >>> Sinusoidal(3)(torch.zeros(1, 2, 3))
        tensor([[[0.0000, 1.0000, 0.0000],
                 [0.8415, 0.5403, 0.0022]]])
    """

    def __init__(
        self,
        d_model: int,
        *,
        base: float = 10000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("d_model", d_model)
        check_base(base)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise DTypeError(
                f"dtype must be of floats; got dtype={dtype}. Waves run between -1 and 1: use "
                f"torch.float32, or leave it out."
            )
        self.d_model = d_model
        self.base = float(base)
        self.dtype = dtype
        self._frequencies = frequencies(d_model, self.base)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], positions: Positions = None
    ) -> Float[Tensor, "batch length d_model"]:
        """The stream with the encoding added, in the dtype of ``x``.

        Args:
            x: The stream.
            positions: Where the tokens stand: None for 0, 1, 2, ..., an int for the first of a
                run, or integers (length,) or (batch, length).

        Raises:
            ShapeError: If ``x`` is not (batch, length, d_model).
            DTypeError: If ``x`` is not of floats.
            PositionError: If the positions are not integers, one a token.
        """
        check_stream(x, self.d_model)
        batch, length, _ = x.shape
        given = read_positions(positions, batch=batch, length=length, device=x.device)
        numbers = as_tensor(given, length=length, device=x.device)
        return x + self._encode(numbers, angle_dtype(x.dtype)).to(x.dtype)

    def table(self, positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens d_model"]:
        """The encoding alone, of positions of any shape; zeros where there is no token.

        Example:
            >>> Sinusoidal(2).table(torch.tensor([0, -1]))
            tensor([[0., 1.],
                    [0., 0.]])
        """
        check_table_positions(positions)
        return self._encode(positions, angle_dtype(self.dtype)).to(self.dtype)

    def _encode(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        cos, sin = cos_sin(self._frequencies, positions, dtype)
        waves = torch.stack((sin, cos), dim=-1).flatten(-2)[..., : self.d_model]
        return waves.masked_fill((positions < 0).unsqueeze(-1), 0.0)

    def extra_repr(self) -> str:
        return f"{self.d_model}, base={self.base:g}"
