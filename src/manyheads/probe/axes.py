"""Which dimension of a tensor counts what, told by its strides through views and copies."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Role = Literal["row", "column", "lead"]


@dataclass(frozen=True)
class Axis:
    """What a dimension counts.

    Args:
        role: Rows of the left factor, columns of the right one, or products before both.
        size: How many.
        weight: By how many products one step of a "lead" dimension moves.
        stride: How far apart its steps lie in memory.
    """

    role: Role
    size: int
    weight: int
    stride: int


class Axes:
    """The dimensions of scores (products, rows, columns) as they lie in one piece of memory."""

    def __init__(self, axes: list[Axis]) -> None:
        self.row, self.column = (
            next((axis for axis in axes if axis.role == role), None) for role in ("row", "column")
        )
        self.leads = [axis for axis in axes if axis.role == "lead"]
        self.numel = 1
        for axis in axes:
            self.numel *= axis.size

    def read(self, view: Tensor) -> list[Axis] | None:
        """What each dimension of a view of that memory counts; None if it is not all of it."""
        if view.numel() != self.numel:
            return None
        found = []
        for size, stride in zip(view.shape, view.stride(), strict=True):
            axis = self._one(size, stride)
            if axis is None:
                return None
            found.append(axis)
        return found

    def _one(self, size: int, stride: int) -> Axis | None:
        if size == 1:
            return Axis("lead", 1, 0, stride)
        for axis in (self.column, self.row, *self.leads):
            if axis is not None and (axis.size, axis.stride) == (size, stride):
                return axis
        # One dimension split into several, or several merged, where they lie one in another.
        units = {axis.stride // axis.weight for axis in self.leads if axis.weight}
        if len(units) != 1 or stride % (unit := units.pop()):
            return None
        return Axis("lead", size, stride // unit, stride)


def moved(axes: list[Axis], to: Tensor) -> Axes | None:
    """The same dimensions where an operation has laid them; None if it changed their sizes."""
    if [axis.size for axis in axes] != list(to.shape):
        return None
    laid = zip(axes, to.stride(), strict=True)
    return Axes([Axis(axis.role, axis.size, axis.weight, stride) for axis, stride in laid])


def leads_in_order(axes: list[Axis]) -> list[int]:
    """The dimensions of products, the slowest first."""
    leads = [i for i, axis in enumerate(axes) if axis.role == "lead" and axis.size > 1]
    return sorted(leads, key=lambda i: -axes[i].weight)
