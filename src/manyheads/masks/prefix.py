"""The first keys are seen by all."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Facts, Side
from manyheads.shapes import check_count, holds_integers


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """Every query sees the keys at positions below ``length``.

    A prefix language model, whose prompt is read in both directions, is
    ``Causal() | Prefix(length)``.

    Args:
        length: How many tokens the prefix has, or int (batch,) where sequences differ.

    Raises:
        OptionError: If the number is negative or not an int.
        MaskError: If a tensor is not int (batch,).

    Source:
        Raffel et al. 2020 (arXiv:1910.10683), section 3.2.1.

    Example:
        >>> import manyheads as mh
        >>> print((mh.Causal() | mh.Prefix(2)).draw(4))
        ██··
        ██··
        ███·
        ████
    """

    length: int | Tensor

    def __post_init__(self) -> None:
        length = self.length
        if not isinstance(length, Tensor):
            check_count("length", length, least=0)
        elif length.ndim != 1 or not holds_integers(length):
            raise MaskError(
                f"length must be an int or int (batch,); got {length.dtype} of shape "
                f"{tuple(length.shape)}. Give each sequence's number of prefix tokens."
            )

    def settle(self, facts: Facts) -> Mask:
        if not isinstance(self.length, Tensor):
            return self
        positions = facts.kv.positions()
        positions = positions[None] if positions.ndim == 1 else positions
        lengths = self.length.to(positions.device)[:, None]
        if lengths.shape[0] not in (1, facts.batch):
            raise MaskError(
                f"length must be an int or int (batch,) = ({facts.batch},); got shape "
                f"{tuple(self.length.shape)}. Give each sequence's number of prefix tokens."
            )
        return InPrefix(facts.keys("prefix", self, positions < lengths))

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return kv.position < self.length

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        if isinstance(self.length, Tensor):
            return True, False
        return kv_lo < self.length, kv_hi < self.length

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        return kv_lo

    def reopens_future(self) -> bool:
        return False  # that is what a prefix is for

    def __repr__(self) -> str:
        if isinstance(self.length, Tensor):
            return f"Prefix(lengths of {tuple(self.length.shape)})"
        return f"Prefix({self.length})"


@dataclass(frozen=True, eq=False)
class InPrefix(Mask):
    """The rule of a `Prefix` with lengths of their own: keys marked as prefix are seen."""

    fact: str

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return kv[self.fact]

    def reopens_future(self) -> bool:
        return False
