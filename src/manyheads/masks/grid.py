"""Who sees whom in a picture, whose pixels stand row after row."""

from dataclasses import dataclass

from torch import Tensor

from manyheads.masks.base import Mask
from manyheads.masks.facts import Side
from manyheads.shapes import check_count


@dataclass(frozen=True, eq=False)
class Neighbourhood(Mask):
    """Each pixel sees the square of pixels around it.

    Args:
        width: Pixels in a row of the picture; position p is row ``p // width``.
        radius: How many pixels away, in both directions, are still seen.

    Raises:
        OptionError: If a number is out of range.

    Source:
        Hassani et al. 2023 (arXiv:2204.07143); theirs shifts the square inwards at the border,
        ours cuts it off.

    Example:
        >>> import manyheads as mh
        >>> mh.Neighbourhood(width=4, radius=1).dense(16).sum(-1).view(4, 4).tolist()
        [[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]
    """

    width: int
    radius: int

    def __post_init__(self) -> None:
        check_count("width", self.width)
        check_count("radius", self.radius, least=0)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        rows = q.position // self.width - kv.position // self.width
        columns = q.position % self.width - kv.position % self.width
        return (rows.abs() <= self.radius) & (columns.abs() <= self.radius)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        nearest = q_lo // self.width - kv_hi // self.width
        farthest = q_hi // self.width - kv_lo // self.width
        some = -self.radius <= farthest and nearest <= self.radius
        near_rows = -self.radius <= nearest and farthest <= self.radius
        return some, near_rows and self.width - 1 <= self.radius


@dataclass(frozen=True, eq=False)
class Tiles(Mask):
    """Each pixel sees the pixels of its own square tile.

    Swin's shifted windows are ``Tiles(width, tile, shift=tile // 2)``: the tiles move by `shift`,
    and what is left over at the border makes smaller tiles. (Swin rolls the picture around and
    masks what does not belong together; the pairs are the same.)

    Args:
        width: Pixels in a row of the picture; position p is row ``p // width``.
        tile: Side of a tile, in pixels.
        shift: By how many pixels the tiles are moved, right and down.

    Raises:
        OptionError: If a number is out of range.

    Source:
        Liu et al. 2021 (arXiv:2103.14030), section 3.2.

    Example:
        >>> import manyheads as mh
        >>> mh.Tiles(width=4, tile=2, shift=1).dense(16).sum(-1).view(4, 4).tolist()
        [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]
    """

    width: int
    tile: int
    shift: int = 0

    def __post_init__(self) -> None:
        check_count("width", self.width)
        check_count("tile", self.tile)
        check_count("shift", self.shift, least=0)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return (self._row(q.position) == self._row(kv.position)) & (
            self._column(q.position) == self._column(kv.position)
        )

    def _row(self, position: Tensor) -> Tensor:
        return (position // self.width - self.shift) // self.tile

    def _column(self, position: Tensor) -> Tensor:
        return (position % self.width - self.shift) // self.tile

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        def row(position: int) -> int:
            return (position // self.width - self.shift) // self.tile

        some = row(q_lo) <= row(kv_hi) and row(kv_lo) <= row(q_hi)
        return some, False
