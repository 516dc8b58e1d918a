"""Few keys, ever farther apart."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from manyheads.errors import OptionError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Side


@dataclass(frozen=True, eq=False)
class Dyadic(Mask):
    """Each query sees keys whose number grows with the logarithm of the length, or not at all.

    Args:
        kind: "powers": keys at distance 0, 1, 2, 4, 8, ...; "halves": position i sees i // 2, i
            and 2 i.

    Raises:
        OptionError: If the kind is another.

    Source:
        Li et al. 2019 (arXiv:1907.00235), section 4.2, for the powers (LogSparse).

    Example:
        >>> import manyheads as mh
        >>> print((mh.Causal() & mh.Dyadic()).draw(6))
        █·····
        ██····
        ███···
        ·███··
        █·███·
        ·█·███
        >>> print(mh.Dyadic("halves").draw(6))
        █·····
        ███···
        ·██·█·
        ·█·█··
        ··█·█·
        ··█··█
    """

    kind: Literal["powers", "halves"] = "powers"

    def __post_init__(self) -> None:
        if self.kind not in ("powers", "halves"):
            raise OptionError(
                f"kind must be 'powers' or 'halves'; got kind={self.kind!r}. Choose which keys "
                f"are seen."
            )

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        if self.kind == "powers":
            distance = (q.position - kv.position).abs()
            # A power of two has one bit, which subtracting 1 clears.
            return (distance & (distance - 1)) == 0
        here, there = q.position, kv.position
        return (here == there) | (there == here // 2) | (there == here * 2)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        nearest, farthest = q_lo - kv_hi, q_hi - kv_lo
        if nearest <= 0 <= farthest:
            return True, nearest == farthest
        if self.kind == "powers":
            low, high = sorted((abs(nearest), abs(farthest)))
            power = 1 << (high.bit_length() - 1)
            return power >= low, low == high == power or (low, high) == (1, 2)
        below = kv_lo <= q_hi // 2 and q_lo // 2 <= kv_hi
        above = kv_lo <= 2 * q_hi and 2 * q_lo <= kv_hi
        return below or above, False

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        return q_lo - kv_lo if self.kind == "powers" else (q_lo, kv_lo)
