"""A penalty that grows with the distance, at a pace of its own for each head."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.positions.angles import angle_dtype, as_row
from manyheads.positions.bias import Bias, Folded, Place, distances, rows_of
from manyheads.shapes import check_count


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """The paper's slope of each head.

    For a power of two n: ``2 ** (-8 / n)``, its square, its cube, ... Otherwise those of the power
    of two below, then every second one of the power above; they are not sorted.

    Source:
        Press et al. 2021, section 3 (arXiv:2108.12409), and ``get_slopes`` of its code.

    Example:
        >>> alibi_slopes(6)
        (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
    """
    num_heads = check_count("num_heads", num_heads)
    below = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    rest = [2.0 ** (-4 * (i + 1) / below) for i in range(0, 2 * below, 2)]
    return tuple(first + rest[: num_heads - below])


class ALiBi(Bias):
    """Lower each score by the distance in tokens times the slope of the head.

    ``-slope[h] * abs(q_pos - kv_pos)``: under a causal mask the paper's ``-slope * (i - j)``, and
    without one its symmetric form.

    How ours differs: any number of heads; distances come from positions, so that a query after a
    cache, or after left padding, knows how far it stands from each key. Fixed slopes are plain
    numbers, which no cast and no meta device can spoil. Under a causal mask the fused kernel serves
    them exactly, as eight further features of q and k, in memory linear in the length.

    Args:
        num_heads: Query heads.
        slopes: One number a head; None takes the paper's.
        learned: Whether the slopes are trained; the parameter is `slopes`.
        device: Where learned slopes are made.
        dtype: The dtype of learned slopes.

    Raises:
        OptionError: If slopes are not finite numbers, one a head.

    Source:
        Press et al. 2021, section 3 (arXiv:2108.12409).

    Example:
        >>> q, k = torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 3, 4)
        >>> ALiBi(2, slopes=(0.5, 0.25))(q, k, 2, 0, scale=0.5)[0, :, 0]
        tensor([[-1.0000, -0.5000, -0.0000],
                [-0.5000, -0.2500, -0.0000]])
    """

    def __init__(
        self,
        num_heads: int,
        *,
        slopes: tuple[float, ...] | None = None,
        learned: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(check_count("num_heads", num_heads))
        self._fixed = alibi_slopes(num_heads) if slopes is None else tuple(slopes)
        if len(self._fixed) != num_heads or not all(map(math.isfinite, self._fixed)):
            raise OptionError(
                f"slopes must be {num_heads} finite numbers, one a head; got "
                f"slopes={self._fixed}. Leave them out for the paper's."
            )
        self.slopes: nn.Parameter | None = None
        if learned:
            self.slopes = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin learned slopes anew."""
        if self.slopes is not None:
            with torch.no_grad():
                self.slopes.copy_(as_row(self._fixed, torch.float32, like=self.slopes))

    def forward(
        self,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
        q_pos: Place,
        kv_pos: Place,
        *,
        scale: float,
    ) -> Float[Tensor, "#batch #num_heads q_len kv_len"]:
        slopes = self._slopes(q)
        apart = distances(q_pos, kv_pos, q, k).abs()
        return apart.to(slopes.dtype) * -slopes[:, None, None]

    def of_distance(self, like: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """See `Bias.of_distance`."""
        slopes = self._slopes(like)
        return lambda head, distance: -slopes[head] * distance.abs()

    def _slopes(self, like: Tensor) -> Float[Tensor, " num_heads"]:
        dtype = angle_dtype(like.dtype)
        if self.slopes is None:
            return as_row(self._fixed, dtype, like=like)
        return self.slopes.to(dtype)

    def fold(
        self, q: Tensor, k: Tensor, q_pos: Place, kv_pos: Place, *, scale: float
    ) -> Folded | None:
        """-slope * (q_pos - kv_pos) as eight further features.

        Slopes and positions are split into parts so short that a product of two is exact in fp32,
        which is where kernels add.
        """
        if self.slopes is not None or scale == 0:
            return None
        slopes = [slope / scale for slope in self._fixed]  # the kernel multiplies by the scale
        if max(map(abs, slopes)) * 4096 >= torch.finfo(q.dtype).max:
            return None
        if q.element_size() >= 4:
            return _fold_wide(slopes, q, k, q_pos, kv_pos)
        return _fold_half(slopes, q, k, q_pos, kv_pos, scale)

    def extra_repr(self) -> str:
        return f"{self.num_heads}" + (", learned=True" if self.slopes is not None else "")


def _fold_wide(slopes: list[float], q: Tensor, k: Tensor, q_pos: Place, kv_pos: Place) -> Folded:
    # 12 bits by 12 bits are the 24 of fp32: exact for fewer than 2 ** 24 tokens.
    parts = [_rounded(slope, 12) for slope in slopes]
    rest = [slope - part for slope, part in zip(slopes, parts, strict=True)]
    q_digits, k_digits = _digits(rows_of(q_pos, q), 12, 2), _digits(rows_of(kv_pos, k), 12, 2)
    q_columns, k_columns = [], []
    for part in (parts, rest):
        column = as_row(tuple(part), q.dtype, like=q)[:, None]
        for power, (q_digit, k_digit) in enumerate(zip(q_digits, k_digits, strict=True)):
            slope = column * 4096.0**power
            q_digit, k_digit = q_digit[:, None].to(q.dtype), k_digit[:, None].to(q.dtype)
            q_columns += [slope.expand(*q_digit.shape[:1], *slope.shape[:1], q.shape[2])]
            q_columns += [-slope * q_digit]
            k_columns += [k_digit, torch.ones_like(k_digit)]
    return Folded(torch.stack(q_columns, dim=-1), torch.stack(k_columns, dim=-1))


def _fold_half(
    slopes: list[float], q: Tensor, k: Tensor, q_pos: Place, kv_pos: Place, scale: float
) -> Folded:
    # Two short numbers have a product that no short number holds, so -slope * q_pos is left out:
    # it is the same for all keys of a query.
    bits, digits = (8, 3) if q.dtype == torch.bfloat16 else (10, 2)
    centre = kv_pos + k.shape[2] // 2 if isinstance(kv_pos, int) else 0
    # Below 0 there is no token, and fp16 would make inf of one far below.
    k_digits = _digits(rows_of(kv_pos, k).clamp(min=0) - centre, bits, digits)
    q_columns, k_columns, rest = [], [], slopes
    for _ in range(2):
        part = [_rounded(slope, bits) for slope in rest]
        rest = [slope - taken for slope, taken in zip(rest, part, strict=True)]
        for power, digit in enumerate(k_digits):
            q_columns.append(tuple(slope * 2.0 ** (bits * power) for slope in part))
            k_columns.append(digit[:, None].to(q.dtype))
    missing = 8 - len(q_columns)  # kernels like widths that eight divides
    q_columns += [(0.0,) * len(slopes)] * missing
    k_columns += [torch.zeros_like(k_columns[0])] * missing
    columns = torch.stack([as_row(column, q.dtype, like=q) for column in q_columns], dim=-1)
    away = (rows_of(q_pos, q) - centre)[:, None].float()
    per_row = (
        away * -as_row(tuple(slope * scale for slope in slopes), torch.float32, like=q)[:, None]
    )
    return Folded(
        columns[None, :, None].expand(1, -1, q.shape[2], -1),
        torch.stack(k_columns, dim=-1),
        per_row,
    )


def _digits(positions: Tensor, bits: int, count: int) -> list[Tensor]:
    """The positions in base ``2 ** bits``, lowest digit first; the highest takes the sign."""
    digits = [(positions >> (bits * power)) & (2**bits - 1) for power in range(count - 1)]
    return [*digits, positions >> (bits * (count - 1))]


def _rounded(number: float, bits: int) -> float:
    """The nearest number of so many significant bits."""
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)
