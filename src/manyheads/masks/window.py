"""Only the near are seen."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from manyheads.errors import OptionError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Side
from manyheads.shapes import check_count


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Window(Mask):
    """Each query sees keys nearer than ``size`` positions, on both sides.

    ``Causal() & Window(4)`` leaves four keys, the query's own included; ``Window(4)`` alone leaves
    seven. Libraries differ here by one: FlashAttention's ``window_size=(W, 0)`` is
    ``Causal() & Window(W + 1)``; Hugging Face's ``sliding_window=W`` is ``Causal() & Window(W)``.

    Args:
        size: Keys at a distance below this many tokens are seen.
        before: Instead of `size`: how many earlier neighbours, self not counted; None = all.
        after: Instead of `size`: how many later neighbours, self not counted; None = all.

    Raises:
        OptionError: If nothing or both forms are given, or a number is out of range.

    Source:
        Beltagy et al. 2020 (arXiv:2004.05150), section 3.1.

    Example:
        >>> import manyheads as mh
        >>> print(mh.Window(2).draw(4))
        ██··
        ███·
        ·███
        ··██
        >>> mh.Window(before=3, after=0)
        Window(before=3, after=0)
    """

    before: int | None
    after: int | None

    def __init__(
        self, size: int | None = None, *, before: int | None = None, after: int | None = None
    ) -> None:
        if size is not None:
            if before is not None or after is not None:
                raise OptionError(
                    f"Window must have either size or before and after; got size={size}, "
                    f"before={before}, after={after}. Drop size for a lopsided window."
                )
            before = after = check_count("size", size) - 1
        elif before is None and after is None:
            raise OptionError(
                "Window must have a size, or before or after; got none of them. Write Window(256), "
                "or leave the window out where everything is near."
            )
        for name, count in (("before", before), ("after", after)):
            if count is not None:
                check_count(name, count, least=0)
        object.__setattr__(self, "before", before)
        object.__setattr__(self, "after", after)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        distance = q.position - kv.position
        if self.before is None:
            return distance >= -self.after  # type: ignore[operator]
        if self.after is None:
            return distance <= self.before
        return (distance >= -self.after) & (distance <= self.before)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        nearest, farthest = q_lo - kv_hi, q_hi - kv_lo
        some = (self.before is None or nearest <= self.before) and (
            self.after is None or farthest >= -self.after
        )
        every = (self.before is None or farthest <= self.before) and (
            self.after is None or nearest >= -self.after
        )
        return some, every

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        return q_lo - kv_lo

    def hides_future(self) -> bool:
        # Window(1) is the diagonal: whoever joins it with more does not think of causality.
        return self.after == 0 and self.before != 0

    def __repr__(self) -> str:
        if self.before == self.after:
            return f"Window({self.before + 1})"  # type: ignore[operator]
        return f"Window(before={self.before}, after={self.after})"
