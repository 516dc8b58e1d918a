"""A mask of its own for each head."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.algebra import And, Not, Or
from manyheads.masks.base import Mask, four_dims
from manyheads.masks.facts import Facts, Side


@dataclass(frozen=True, eq=False, repr=False)
class PerHead(Mask):
    """Query head h follows the h-th mask.

    Of a `PerHead` inside the h-th mask, head h follows the h-th mask as well.

    Args:
        masks: One mask a query head.

    Raises:
        MaskError: If there are none, not as many in a `PerHead` within, or, when called, not as
            many as heads.

    Example:
        >>> import manyheads as mh
        >>> mask = mh.PerHead((mh.Causal(), mh.Causal() & mh.Window(2)))
        >>> mask.dense(4, num_heads=2).sum(-1)[0].tolist()
        [[1, 2, 3, 4], [1, 2, 2, 2]]
    """

    masks: tuple[Mask, ...]

    reads_head = True

    def __post_init__(self) -> None:
        masks = tuple(self.masks) if isinstance(self.masks, Iterable) else ()
        if not masks or not all(isinstance(mask, Mask) for mask in masks):
            raise MaskError(
                f"masks must be one Mask for each query head; got {self.masks!r}. Write "
                f"PerHead((Causal(), Causal() & Window(8)))."
            )
        own = tuple(of_head(mask, head, len(masks)) for head, mask in enumerate(masks))
        object.__setattr__(self, "masks", own)

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return any(mask.reads_positions for mask in self.masks)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        if head.ndim == 0:  # one head of one pair, as FlexAttention asks
            seen = torch.zeros_like(head, dtype=torch.bool)
            for h, mask in enumerate(self.masks):
                seen = seen | ((head == h) & mask.allows(head, q, kv))
            return seen
        self.check_heads(head.shape[0])
        each = [four_dims(mask.allows(head[h : h + 1], q, kv)) for h, mask in enumerate(self.masks)]
        return torch.cat(torch.broadcast_tensors(*each), dim=1)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        heads = range(len(self.masks)) if head is None else (head,)
        found = [self.masks[h].bounds(h, q_lo, q_hi, kv_lo, kv_hi) for h in heads]
        return any(some for some, _ in found), all(every for _, every in found)

    def check_heads(self, num_heads: int) -> None:
        """Refuse a call of another number of heads."""
        if num_heads != len(self.masks):
            raise MaskError(
                f"PerHead must have a mask for each of num_heads={num_heads} query heads; got "
                f"{len(self.masks)}. Repeat masks where heads share one."
            )

    def settle(self, facts: Facts) -> Mask:
        return PerHead(tuple(mask.settle(facts) for mask in self.masks))

    def absent(self, shown: bool = False) -> frozenset[str]:
        return frozenset.intersection(*(mask.absent(shown) for mask in self.masks))

    def among(self, facts: frozenset[str]) -> Mask:
        return PerHead(tuple(mask.among(facts) for mask in self.masks))

    def hides_future(self) -> bool:
        return all(mask.hides_future() for mask in self.masks)

    def __repr__(self) -> str:
        return f"PerHead({self.masks!r})"


def of_head(rule: Mask, head: int | None, num_heads: int) -> Mask:
    """What a rule says to one head, without any `PerHead`; the whole rule where head is None."""
    if head is None or not any(isinstance(part, PerHead) for part in rule.parts()):
        return rule
    if isinstance(rule, PerHead):
        rule.check_heads(num_heads)
        return rule.masks[head]
    if isinstance(rule, And | Or):
        left, right = (of_head(side, head, num_heads) for side in (rule.left, rule.right))
        return type(rule)(left, right)
    return Not(of_head(rule.mask, head, num_heads)) if isinstance(rule, Not) else rule
