"""Masks made of masks: and, or, not, and the mask that hides nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.masks.base import Mask
from manyheads.masks.facts import Facts, Side


@dataclass(frozen=True, eq=False)
class Everyone(Mask):
    """Every query sees every key."""

    reads_positions = False

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return kv.position.new_ones((1,) * kv.position.ndim, dtype=torch.bool)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        return True, True


@dataclass(frozen=True, eq=False)
class And(Mask):
    """A query sees a key if both masks let it."""

    left: Mask
    right: Mask

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return self.left.reads_positions or self.right.reads_positions

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return self.left.allows(head, q, kv) & self.right.allows(head, q, kv)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        some_left, all_left = self.left.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        some_right, all_right = self.right.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        return some_left and some_right, all_left and all_right

    def settle(self, facts: Facts) -> Mask:
        return And(self.left.settle(facts), self.right.settle(facts))

    def absent(self, shown: bool = False) -> frozenset[str]:
        left, right = self.left.absent(shown), self.right.absent(shown)
        return left & right if shown else left | right

    def among(self, facts: frozenset[str]) -> Mask:
        return both(self.left.among(facts), self.right.among(facts))

    def hides_future(self) -> bool:
        return self.left.hides_future() or self.right.hides_future()

    def __repr__(self) -> str:
        return f"{_inner(self.left, Or)} & {_inner(self.right, Or)}"


@dataclass(frozen=True, eq=False)
class Or(Mask):
    """A query sees a key if either mask lets it."""

    left: Mask
    right: Mask

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return self.left.reads_positions or self.right.reads_positions

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return self.left.allows(head, q, kv) | self.right.allows(head, q, kv)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        some_left, all_left = self.left.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        some_right, all_right = self.right.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        return some_left or some_right, all_left or all_right

    def settle(self, facts: Facts) -> Mask:
        return Or(self.left.settle(facts), self.right.settle(facts))

    def absent(self, shown: bool = False) -> frozenset[str]:
        left, right = self.left.absent(shown), self.right.absent(shown)
        return left | right if shown else left & right

    def among(self, facts: frozenset[str]) -> Mask:
        return Or(self.left.among(facts), self.right.among(facts))

    def hides_future(self) -> bool:
        return self.left.hides_future() and self.right.hides_future()

    def __repr__(self) -> str:
        return f"{self.left!r} | {self.right!r}"


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """A query sees a key if the mask does not let it."""

    mask: Mask

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return self.mask.reads_positions

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return ~self.mask.allows(head, q, kv)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        some, every = self.mask.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        return not every, not some

    def settle(self, facts: Facts) -> Mask:
        return Not(self.mask.settle(facts))

    def absent(self, shown: bool = False) -> frozenset[str]:
        return self.mask.absent(not shown)

    def among(self, facts: frozenset[str]) -> Mask:
        return Not(self.mask.among(facts))

    def __repr__(self) -> str:
        return f"~{_inner(self.mask, (And, Or))}"


def _inner(mask: Mask, loose: type | tuple[type, ...]) -> str:
    return f"({mask!r})" if isinstance(mask, loose) else repr(mask)


def both(left: Mask, right: Mask) -> Mask:
    """``left & right``, without the parts that hide nothing."""
    if isinstance(left, Everyone):
        return right
    return left if isinstance(right, Everyone) else And(left, right)
