"""A window with gaps."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from manyheads.masks.base import Mask
from manyheads.masks.facts import Side
from manyheads.shapes import check_count


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Each query sees every ``step``-th key, ``size`` of them on each side, itself counted.

    It reaches ``step`` times as far as ``Window(size)`` for the same number of keys.

    Args:
        size: Keys at a distance of fewer than this many steps are seen.
        step: Tokens from one key that is seen to the next.

    Raises:
        OptionError: If a number is below 1.

    Source:
        Beltagy et al. 2020 (arXiv:2004.05150), section 3.1.

    Example:
        >>> import manyheads as mh
        >>> print(mh.Dilated(2, step=2).draw(6))
        █·█···
        ·█·█··
        █·█·█·
        ·█·█·█
        ··█·█·
        ···█·█
    """

    size: int
    step: int

    def __post_init__(self) -> None:
        check_count("size", self.size)
        check_count("step", self.step)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        distance = (q.position - kv.position).abs()
        return (distance % self.step == 0) & (distance < self.size * self.step)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        nearest, farthest = q_lo - kv_hi, q_hi - kv_lo
        reach = (self.size - 1) * self.step
        lowest, highest = max(nearest, -reach), min(farthest, reach)
        some = lowest <= highest and highest // self.step * self.step >= lowest
        every = -reach <= nearest and farthest <= reach and (self.step == 1 or nearest == farthest)
        return some, every and some

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        return q_lo - kv_lo
