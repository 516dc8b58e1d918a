"""Rotary frequencies, changed so that a model reads further than it was trained to.

A scaling is a frozen dataclass of numbers, given to `Rotary(head_dim, scaling=...)`.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.positions.angles import frequencies
from manyheads.shapes import check_count


@dataclass(frozen=True)
class Scaling:
    """What every scaling answers; subclass it and define one of the two methods.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class OnlyTheSlowHalf(Scaling):
        ...     def frequencies(self, width: int, base: float) -> tuple[float, ...]:
        ...         return tuple(f if f < 0.1 else 0.0 for f in frequencies(width, base))
        >>> OnlyTheSlowHalf().frequencies(4, 10000.0)
        (0.0, 0.01)
    """

    depends_on_length: ClassVar[bool] = False
    """Whether frequencies change as the text grows. A layer then caches its keys unturned."""

    @property
    def gain(self) -> float:
        """Multiplies cosines and sines, and so the scores of turned features by its square."""
        return 1.0

    @property
    def score_factor(self) -> float:
        """Multiplies the scale of the scores, for features that are turned and not turned alike."""
        return 1.0

    def frequencies(self, width: int, base: float) -> tuple[float, ...]:
        """Radians a token, one for each pair of ``width`` features."""
        raise NotImplementedError

    def frequencies_at(
        self, width: int, base: float, length: Float[Tensor, " rows"]
    ) -> Float[Tensor, "rows pairs"]:
        """The same for texts of some lengths, in float64; asked if `depends_on_length`."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Slow every pair down alike: position p is read as ``p / factor``.

    Args:
        factor: How many times longer than in training texts may be, at least 1.

    Source:
        Chen et al. 2023, equation 4, position interpolation (arXiv:2306.15595).

    Example:
        >>> LinearScaling(4.0).frequencies(4, 10000.0)
        (0.25, 0.0025)
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)

    def frequencies(self, width: int, base: float) -> tuple[float, ...]:
        return tuple(f / self.factor for f in frequencies(width, base))


@dataclass(frozen=True)
class NTKScaling(Scaling):
    """Raise the base, so that the fastest pair keeps its pace and the slowest is slowed fully.

    With w the width of what is turned, the base becomes ``base * factor ** (w / (w - 2))``: outside
    the power of the pairs. (``(factor * base) ** (2i / w)`` is a known mistake, and weaker.)

    Args:
        factor: How many times longer than in training texts may be, at least 1.

    Source:
        bloc97 2023, "NTK-Aware Scaled RoPE"; Peng et al. 2023, definition 1 (arXiv:2309.00071).

    Example:
        >>> first, last = NTKScaling(4.0).frequencies(4, 10000.0)
        >>> first, round(last, 12)
        (1.0, 0.0025)
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)

    def frequencies(self, width: int, base: float) -> tuple[float, ...]:
        _check_width(width)
        return frequencies(width, base * self.factor ** (width / (width - 2)))


@dataclass(frozen=True)
class DynamicNTKScaling(Scaling):
    """Leave texts of the trained length as they are, and raise the base as a text outgrows it.

    With n the tokens of the text so far and w the width of what is turned, the base becomes
    ``base * (factor * n / original_length - (factor - 1)) ** (w / (w - 2))`` where n exceeds the
    original length.

    How ours differs: when the base rises, cached keys turn anew (a layer caches them unturned), so
    a token decoded with a cache gets what one pass over the text so far would give it. Each row of
    a batch has its own length, left padding not counted.

    Args:
        factor: How many times longer than in training texts may be, at least 1.
        original_length: Tokens that the model was trained on.

    Source:
        emozilla 2023, "Dynamically Scaled RoPE"; as in Hugging Face's ``"dynamic"``.

    Example:
        >>> scaling = DynamicNTKScaling(4.0, original_length=2048)
        >>> scaling.frequencies_at(4, 10000.0, torch.tensor([2048.0, 4096.0]))[:, -1]
        tensor([0.0100, 0.0020], dtype=torch.float64)
    """

    depends_on_length: ClassVar[bool] = True

    factor: float
    original_length: int

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)
        check_count("original_length", self.original_length)

    def frequencies_at(
        self, width: int, base: float, length: Float[Tensor, " rows"]
    ) -> Float[Tensor, "rows pairs"]:
        _check_width(width)
        beyond = length.double().clamp(min=self.original_length) / self.original_length
        ratio = self.factor * beyond - (self.factor - 1)
        stretched = base * ratio ** (width / (width - 2))
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=length.device) / width
        return stretched[:, None] ** -exponents


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Slow the slow pairs fully, leave the fast ones, and blend those between.

    A pair is fast if it takes more than ``high`` whole turns in the original length, slow if it
    takes fewer than ``low``.

    Args:
        factor: How many times the slow pairs are slowed, at least 1.
        original_length: Tokens that the model was trained on first.
        low: Turns in the original length, below which a pair is slow.
        high: Turns, above which it is fast.

    Source:
        Llama Team 2024, Llama 3.1 (arXiv:2407.21783); ``apply_scaling`` in Meta's llama-models.

    Example:
        >>> scaling = Llama3Scaling(8.0, original_length=8192)
        >>> plain, scaled = frequencies(128, 5e5), scaling.frequencies(128, 5e5)
        >>> [plain[i] / scaled[i] for i in (0, 63)]
        [1.0, 8.0]
    """

    factor: float
    original_length: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)
        check_count("original_length", self.original_length)
        if not 0 < self.low < self.high:
            raise OptionError(
                f"low must be above 0 and below high; got low={self.low!r}, high={self.high!r}. "
                f"Llama 3.1 has low=1.0, high=4.0."
            )

    def frequencies(self, width: int, base: float) -> tuple[float, ...]:
        return tuple(self._scaled(f) for f in frequencies(width, base))

    def _scaled(self, frequency: float) -> float:
        turns = self.original_length * frequency / (2 * math.pi)
        kept = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
        return frequency * kept + frequency / self.factor * (1 - kept)


def check_factor(name: str, factor: float) -> None:
    """Refuse a factor that does not stretch."""
    if isinstance(factor, bool) or not isinstance(factor, Real) or not 1 <= factor < math.inf:
        raise OptionError(
            f"{name} must be a finite number of at least 1; got {name}={factor!r}. It says how "
            f"many times longer than in training texts may be."
        )


def _check_width(width: int) -> None:
    if width < 4:
        raise OptionError(
            f"a rotary with NTK scaling must turn at least 4 features; got rotary_dim={width}. "
            f"With one pair there is nothing between the fastest and the slowest."
        )
