"""Nobody sees the future."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from manyheads.masks.base import Mask
from manyheads.masks.facts import Side


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Each query sees the keys at its own position and before it.

    Positions decide. With none given the queries are the last ``q_len`` of the ``kv_len`` tokens,
    so a single query after a cache sees every key. (torch's ``is_causal=True`` aligns the first
    query with the first key instead, and agrees only where both lengths are equal.)

    Source:
        Vaswani et al. 2017, section 3.2.3 (arXiv:1706.03762).

    Example:
        >>> import manyheads as mh
        >>> print(mh.Causal().draw(2, 4))
        ███·
        ████
    """

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return q.position >= kv.position

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        return kv_lo <= q_hi, kv_hi <= q_lo

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        return q_lo - kv_lo

    def hides_future(self) -> bool:
        return True
