"""How far a position turns each frequency: the numbers that sinusoidal and rotary share.

They are remade from plain numbers and never stored in a module, so that no cast, no meta device and
no checkpoint can spoil them.
"""

import functools
import math
from numbers import Real

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.positions.given import is_plain_call


def frequencies(width: int, base: float) -> tuple[float, ...]:
    """The turn of each pair of features from one token to the next, in radians.

    ``base ** (-2i / width)`` for i = 0, 1, ...; an odd width has half a pair at the end.

    Example:
        >>> frequencies(4, 10000.0)
        (1.0, 0.01)
    """
    return tuple(base ** (-2 * i / width) for i in range((width + 1) // 2))


def cos_sin(
    frequencies: tuple[float, ...] | Float[Tensor, "rows pairs"],
    positions: Int[Tensor, "*tokens"],
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*angles pairs"], Float[Tensor, "*angles pairs"]]:
    """Cosine and sine of position times frequency; a position below 0 counts as 0.

    Args:
        frequencies: Radians a token, one for each pair; or a row of them for each sequence.
        positions: Where the tokens stand.
        dtype: The dtype of the angles and of the answer, float32 or float64. In float32 an angle
            is off by up to ``position * 2 ** -23``; anything shorter would make noise of it.
    """
    places = positions.clamp(min=0).unsqueeze(-1)
    if isinstance(frequencies, Tensor):
        angles = places * frequencies.to(dtype).unsqueeze(-2)
    else:
        angles = places * as_row(frequencies, dtype, like=positions)
    return angles.cos(), angles.sin()


def cos_sin_of(
    frequencies: tuple[float, ...], coordinates: Tensor, axes: tuple[int, ...], dtype: torch.dtype
) -> tuple[Float[Tensor, "*angles pairs"], Float[Tensor, "*angles pairs"]]:
    """Cosine and sine of coordinate times frequency, the coordinate of each pair's own axis.

    Args:
        frequencies: Radians a step, one for each pair.
        coordinates: (..., length, axes), any numbers.
        axes: The axis of each pair.
        dtype: As in `cos_sin`.
    """
    places = coordinates.to(dtype)[..., list(axes)]
    angles = places * as_row(frequencies, dtype, like=coordinates)
    return angles.cos(), angles.sin()


def as_row(
    frequencies: tuple[float, ...], dtype: torch.dtype, *, like: Tensor
) -> Float[Tensor, " pairs"]:
    """The frequencies as a tensor, where ``like`` is."""
    make = _kept_tensor if is_plain_call(like) else _fresh_tensor
    return make(frequencies, dtype, like.device)


def _fresh_tensor(
    frequencies: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " pairs"]:
    # An ordinary tensor even under inference_mode, for a training step may be the next to use it.
    with torch.inference_mode(False):
        return torch.tensor(frequencies, dtype=dtype, device=device)


# Kept for good: a captured CUDA graph may read it, and a model has one or two of these small rows.
_kept_tensor = functools.cache(_fresh_tensor)


def angle_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which angles are made for features of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_base(base: float) -> None:
    """Refuse a base that gives no falling row of frequencies."""
    if isinstance(base, bool) or not isinstance(base, Real) or not 1 <= base < math.inf:
        raise OptionError(
            f"base must be a finite number of at least 1; got base={base!r}. "
            f"Usual are 10000.0, and more for long contexts."
        )
