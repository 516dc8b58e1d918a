"""Rotary in more than one direction: which pair turns by which coordinate, and how fast."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import DTypeError, OptionError, PositionError, ShapeError
from manyheads.positions.given import check_device
from manyheads.shapes import check_count, check_tensor

Spectrum = Callable[[int], tuple[float, ...]]
"""Gives the frequencies of a rotary of some width."""


@dataclass(frozen=True)
class Axes:
    """What every arrangement of axes answers."""

    @property
    def count(self) -> int:
        """How many coordinates a token has."""
        raise NotImplementedError

    @property
    def by_position(self) -> bool:
        """Whether tokens without coordinates stand at (position, position, ...)."""
        return False

    def of_pairs(self, pairs: int) -> tuple[int, ...]:
        """The axis whose coordinate turns each pair."""
        raise NotImplementedError

    def frequencies(self, width: int, spectrum: Spectrum) -> tuple[float, ...]:
        """Radians a step along its axis, for each pair of ``width`` features."""
        return spectrum(width)


@dataclass(frozen=True)
class Axial(Axes):
    """Give each axis an equal block of pairs: rows and columns of an image, say.

    Args:
        count: How many axes.
        spectrum: ``"own"`` lets each axis run through all speeds, as a rotary of its own on
            ``head_dim / count`` features (Qwen2-VL's vision, EVA-02); ``"shared"`` deals the speeds
            of one rotary out to the axes in turn (Pixtral).

    Source:
        Heo et al. 2024, section 3.1, axial frequency (arXiv:2403.13298).

    Example:
        >>> import torch
        >>> from manyheads.positions import Rotary
        >>> rotary = Rotary(4, axes=Axial(2), pairs="interleaved")
        >>> ones = torch.ones(1, 1, 2, 4)
        >>> rotary(ones, coordinates=torch.tensor([[0, 0], [0, 1]]))[0, 0, 1]
        tensor([ 1.0000,  1.0000, -0.3012,  1.3818])
    """

    count: int = 2
    spectrum: Literal["own", "shared"] = "own"

    def __post_init__(self) -> None:
        check_count("count", self.count)
        if self.spectrum not in ("own", "shared"):
            raise OptionError(
                f"spectrum must be 'own' or 'shared'; got spectrum={self.spectrum!r}. Take the "
                f"one that the weights were trained with."
            )

    def of_pairs(self, pairs: int) -> tuple[int, ...]:
        if pairs % self.count:
            raise OptionError(
                f"pairs of features must divide among {self.count} axes; got {pairs} pairs. "
                f"Choose a rotary_dim that is a multiple of {2 * self.count}."
            )
        return tuple(axis for axis in range(self.count) for _ in range(pairs // self.count))

    def frequencies(self, width: int, spectrum: Spectrum) -> tuple[float, ...]:
        if self.spectrum == "own":
            return spectrum(width // self.count) * self.count
        whole = spectrum(width)
        return tuple(f for axis in range(self.count) for f in whole[axis :: self.count])


@dataclass(frozen=True)
class Sections(Axes):
    """Divide the pairs of one rotary among axes: time, height and width of Qwen's M-RoPE.

    Text, whose coordinates are all its position, is turned as by a rotary of one axis.

    Args:
        sizes: How many pairs each axis has.
        order: ``"blocks"``: one axis after another (Qwen2-VL); ``"interleaved"``: in turn, and what
            is left over goes to the first (Qwen3-VL).

    Source:
        Wang et al. 2024, section 2.1, multimodal rotary (arXiv:2409.12191).

    Example:
        >>> Sections((2, 1, 1)).of_pairs(4)
        (0, 0, 1, 2)
        >>> Sections((2, 1, 1), order="interleaved").of_pairs(4)
        (0, 1, 2, 0)
    """

    sizes: tuple[int, ...]
    order: Literal["blocks", "interleaved"] = "blocks"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))  # a config has lists
        for size in self.sizes:
            check_count("sizes", size, least=0)
        if self.order not in ("blocks", "interleaved"):
            raise OptionError(
                f"order must be 'blocks' or 'interleaved'; got order={self.order!r}. Qwen2-VL has "
                f"blocks, Qwen3-VL interleaves."
            )

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def by_position(self) -> bool:
        return True

    def of_pairs(self, pairs: int) -> tuple[int, ...]:
        if sum(self.sizes) != pairs:
            raise OptionError(
                f"sizes must add up to {pairs} pairs, half of what is turned; got "
                f"sizes={self.sizes}. A config's mrope_section has them."
            )
        if self.order == "blocks":
            return tuple(axis for axis, size in enumerate(self.sizes) for _ in range(size))
        turns = (i % self.count for i in range(pairs))
        return tuple(
            axis if i < self.count * self.sizes[axis] else 0 for i, axis in enumerate(turns)
        )


def read_coordinates(
    coordinates: Tensor, axes: Axes | None, batch: int, length: int, device: torch.device
) -> Tensor:
    """The coordinates, if they fit: (length, axes) or (batch, length, axes)."""
    if axes is None:
        raise PositionError(
            "coordinates must go to a rotary with axes; got coordinates and axes=None. Build "
            "Rotary(..., axes=Axial(2)), or give positions."
        )
    shape, tail = tuple(check_tensor("coordinates", coordinates).shape), (length, axes.count)
    if shape not in (tail, (1, *tail), (batch, *tail)):
        raise ShapeError(
            f"coordinates must be (length, axes) = {tail} or (batch, length, axes) with "
            f"batch={batch}; got shape {shape}. Each token has one number an axis."
        )
    if coordinates.dtype == torch.bool or coordinates.dtype.is_complex:
        raise DTypeError(
            f"coordinates must be real numbers; got coordinates={coordinates.dtype}. Use integers, "
            f"or floats of at least 32 bits."
        )
    check_device("coordinates", coordinates, device)
    return coordinates


def spread_positions(
    positions: Int[Tensor, "*tokens"], axes: Axes | None
) -> Int[Tensor, "*tokens axes"]:
    """The coordinates of tokens of which the positions alone are known."""
    assert axes is not None
    if not axes.by_position:
        raise PositionError(
            f"coordinates must be given to a rotary with axes={axes}; got none. Give numbers "
            f"(length, {axes.count}) or (batch, length, {axes.count})."
        )
    return positions.clamp(min=0).unsqueeze(-1).expand(*positions.shape, axes.count)
