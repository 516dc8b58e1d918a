"""Which squares of blocks perhaps see each other, told by their corners."""

from collections.abc import Hashable
from dataclasses import dataclass

from manyheads.masks.algebra import And, Not, Or
from manyheads.masks.base import Mask
from manyheads.masks.bound import Bound
from manyheads.masks.extent import Extent

Part = tuple[int, int, Hashable]
"""Key blocks from a first to one before a last, and their likeness; True if all see all."""


def seen_blocks(
    bound: Bound, rule: Mask, sequence: int, head: int | None, block: int
) -> list[list[Part]]:
    """The key blocks that each block of queries perhaps sees, in order.

    Args:
        bound: The mask.
        rule: Its rule, for this head.
        sequence: Which sequence of the batch.
        head: Which query head; None for all.
        block: Queries, and keys, in a block.
    """
    longest = max(bound.q.length, bound.kv.length)
    levels = max(1, (-(-longest // block) - 1).bit_length() + 1)
    q = Extent.of(bound.q, sequence, block, levels)
    kv = q if bound.q is bound.kv else Extent.of(bound.kv, sequence, block, levels)
    found: list[list[Part]] = [[] for _ in range(q.leaves)]
    _divide(_Judge(bound, rule, head, q, kv), found, levels - 1, 0, 0)
    return [sorted(parts, key=lambda part: part[0]) for parts in found]


def has_no_tensors(bound: Bound) -> bool:
    """Whether a mask is all rule and runs, the same for every sequence."""
    sides = (bound.q, bound.kv)
    runs = all(side.is_run and side.absent is None and not side.marks for side in sides)
    return runs and not bound.pairs


@dataclass(frozen=True)
class _Judge:
    """What a rule says of squares of blocks."""

    bound: Bound
    rule: Mask
    head: int | None
    q: Extent
    kv: Extent

    def bounds(self, level: int, i: int, j: int) -> tuple[bool, bool]:
        q_lo, q_hi = self.q.ranges[""][level][i]
        kv_lo, kv_hi = self.kv.ranges[""][level][j]
        if q_lo > q_hi or kv_lo > kv_hi:
            return False, False
        if self.bound.q.marks or self.bound.kv.marks:
            some, every = self._marked(self.rule, level, i, j)
        else:
            some, every = self.rule.bounds(self.head, q_lo, q_hi, kv_lo, kv_hi)
        holes = (self.q.holes and self.q.holes[level][i]) or (
            self.kv.holes and self.kv.holes[level][j]
        )
        return some, every and not holes

    def _marked(self, rule: Mask, level: int, i: int, j: int) -> tuple[bool, bool]:
        if isinstance(rule, And | Or):
            some, every = self._marked(rule.left, level, i, j)
            others, all_others = self._marked(rule.right, level, i, j)
            if isinstance(rule, And):
                return some and others, every and all_others
            return some or others, every or all_others
        if isinstance(rule, Not):
            some, every = self._marked(rule.mask, level, i, j)
            return not every, not some
        fact = getattr(rule, "fact", None)
        if fact in self.q.ranges and fact in self.kv.ranges:
            return rule.mark_bounds(*self.q.ranges[fact][level][i], *self.kv.ranges[fact][level][j])
        return rule.bounds(self.head, *self.q.ranges[""][level][i], *self.kv.ranges[""][level][j])

    def likeness(self, i: int, j: int) -> Hashable:
        if not has_no_tensors(self.bound):
            return i, j
        return _likeness(self.rule, self.head, *self.q.ranges[""][0][i], *self.kv.ranges[""][0][j])


def _divide(judge: _Judge, found: list[list[Part]], level: int, i: int, j: int) -> None:
    some, every = judge.bounds(level, i, j)
    if not some:
        return
    if every:
        last = min((j + 1) << level, judge.kv.leaves)
        for row in found[i << level : (i + 1) << level]:
            row.append((j << level, last, True))
    elif level == 0:
        found[i].append((j, j + 1, judge.likeness(i, j)))
    else:
        below = level - 1
        q_blocks, kv_blocks = len(judge.q.ranges[""][below]), len(judge.kv.ranges[""][below])
        for down in range(2 * i, min(2 * i + 2, q_blocks)):
            for across in range(2 * j, min(2 * j + 2, kv_blocks)):
                _divide(judge, found, below, down, across)


def _likeness(
    rule: Mask, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
) -> Hashable:
    block = (q_lo, q_hi, kv_lo, kv_hi)
    some, every = rule.bounds(head, *block)
    if every or not some:
        return every
    if isinstance(rule, And | Or):
        sides = _likeness(rule.left, head, *block), _likeness(rule.right, head, *block)
        return (type(rule), *sides)
    if isinstance(rule, Not):
        return Not, _likeness(rule.mask, head, *block)
    # A rule of which nothing is known may ask for the head too.
    told = type(rule).likeness is not Mask.likeness
    return rule, None if told else head, rule.likeness(*block)
