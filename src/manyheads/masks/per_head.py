"""A mask of its own for each head."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.base import Mask, four_dims
from manyheads.masks.facts import Facts, Side


@dataclass(frozen=True, eq=False, repr=False)
class PerHead(Mask):
    """Query head h follows the h-th mask.

    Args:
        masks: One mask a query head.

    Raises:
        MaskError: If there are none, or, when called, not as many as heads.

    Example:
        >>> import manyheads as mh
        >>> mask = mh.PerHead((mh.Causal(), mh.Causal() & mh.Window(2)))
        >>> mask.dense(4, num_heads=2).sum(-1)[0].tolist()
        [[1, 2, 3, 4], [1, 2, 2, 2]]
    """

    masks: tuple[Mask, ...]

    reads_head = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", tuple(self.masks))
        if not self.masks or not all(isinstance(mask, Mask) for mask in self.masks):
            raise MaskError(
                f"masks must be one Mask for each query head; got {self.masks!r}. Write "
                f"PerHead((Causal(), Causal() & Window(8)))."
            )

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return any(mask.reads_positions for mask in self.masks)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        if head.ndim == 0:
            seen = torch.zeros_like(head, dtype=torch.bool)
            for h, mask in enumerate(self.masks):
                seen = seen | ((head == h) & mask.allows(head, q, kv))
            return seen
        if head.shape[0] != len(self.masks):
            raise MaskError(
                f"PerHead must have a mask for each of num_heads={head.shape[0]} query heads; got "
                f"{len(self.masks)}. Repeat masks where heads share one."
            )
        each = [four_dims(mask.allows(head[h : h + 1], q, kv)) for h, mask in enumerate(self.masks)]
        return torch.cat(torch.broadcast_tensors(*each), dim=1)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        masks = self.masks if head is None else (self.masks[head],)
        found = [mask.bounds(head, q_lo, q_hi, kv_lo, kv_hi) for mask in masks]
        return any(some for some, _ in found), all(every for _, every in found)

    def settle(self, facts: Facts) -> Mask:
        return PerHead(tuple(mask.settle(facts) for mask in self.masks))

    def absent(self, shown: bool = False) -> frozenset[str]:
        return frozenset.intersection(*(mask.absent(shown) for mask in self.masks))

    def among(self, facts: frozenset[str]) -> Mask:
        return PerHead(tuple(mask.among(facts) for mask in self.masks))

    def hides_future(self) -> bool:
        return all(mask.hides_future() for mask in self.masks)

    def __repr__(self) -> str:
        return f"PerHead({', '.join(map(repr, self.masks))})"
