"""A product of queries and keys on its way to the softmax, and what was done to it."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyheads.errors import ProbeError
from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.probe.axes import Axis, leads_in_order


@dataclass(frozen=True)
class Operand:
    """What meets the scores element by element, with the dimensions of the tensor it met."""

    tensor: Tensor
    axes: tuple[Axis, ...]
    factor: float = 1.0

    def four(self, batch: int, heads: int, rows: int, columns: int) -> Tensor:
        """As (batch or 1, heads or 1, rows or 1, columns or 1)."""
        leads = leads_in_order(list(self.axes))
        row, column = (self._dim(role) for role in ("row", "column"))
        tensor = self.tensor[(None,) * (len(self.axes) - self.tensor.ndim)]
        order = [*leads, *(dim for dim in (row, column) if dim is not None)]
        rest = [dim for dim in range(tensor.ndim) if dim not in order]  # of length 1
        sizes = [tensor.shape[dim] for dim in order]
        if row is None:
            sizes.insert(len(leads), 1)
        if column is None:
            sizes.append(1)
        tensor = tensor.permute(*rest, *order).reshape(sizes)
        *lead, _, _ = sizes
        sizes = sizes[-2:]
        if math.prod(lead) == 1:
            return tensor.reshape(1, 1, *sizes)
        if lead and self.axes[leads[-1]].size == heads and math.prod(lead[:-1]) in (1, batch):
            return tensor.reshape(-1, lead[-1], *sizes)
        full = [self.axes[dim].size for dim in leads]
        return tensor.expand(*full, *sizes).reshape(batch, heads, *sizes)

    def _dim(self, role: str) -> int | None:
        return next((i for i, axis in enumerate(self.axes) if axis.role == role), None)


@dataclass(frozen=True)
class Scores:
    """left . right^T for many products at once, scaled, capped, biased and filled.

    Args:
        left: (products, rows, width).
        right: (products, columns, width).
        scale: What they were multiplied by.
        softcap: By what they were bounded; None for nothing.
        changes: What was added, and where they were filled with a number that hides, in order.
        zeroed: Where they were multiplied by 0, until what is added there hides them.
    """

    left: Tensor
    right: Tensor
    scale: float = 1.0
    softcap: float | None = None
    changes: tuple[tuple[Operand, float | None], ...] = ()
    """With the number of a fill, or None for what was added."""
    zeroed: Operand | None = None

    @property
    def is_plain(self) -> bool:
        """Whether they are a product times a number, and no more."""
        return not (self.softcap or self.changes or self.zeroed)

    def times(self, factor: float) -> "Scores | None":
        """Multiplied by a number."""
        if self.softcap is not None and not (factor > 0 and math.isfinite(factor)):
            return None
        changes: list[tuple[Operand, float | None]] = []
        for operand, value in self.changes:
            if value is None:
                changes.append((replace(operand, factor=operand.factor * factor), None))
            elif hides(value * factor):
                changes.append((operand, value * factor))
            else:
                return None
        cap = None if self.softcap is None else self.softcap * factor
        return replace(self, scale=self.scale * factor, softcap=cap, changes=tuple(changes))

    def times_each(self, factor: Operand) -> "Scores | None":
        """Multiplied by a head's own scale, or by 0 where a mask hides and 1 elsewhere."""
        if not self.is_plain:
            return None
        products, rows, _ = self.left.shape
        numbers = factor.four(products, 1, rows, self.right.shape[1])[:, 0]
        if numbers.shape[-1] == 1:
            return replace(self, left=self.left * numbers)
        is_zero = factor.tensor == 0
        if not (is_zero | (factor.tensor == 1)).all():
            return None
        return replace(self, zeroed=Operand(is_zero, factor.axes))

    def tanh(self) -> "Scores | None":
        """Bounded to plus and minus 1."""
        return replace(self, softcap=1.0) if self.is_plain else None

    def plus(self, bias: Operand) -> "Scores | None":
        """With a bias; where they were multiplied by 0 it must be one that hides."""
        if self.zeroed is None:
            return replace(self, changes=(*self.changes, (bias, None)))
        if self.zeroed.axes != bias.axes:
            return None
        where, added = torch.broadcast_tensors(self.zeroed.tensor, bias.tensor * bias.factor)
        most = float(added.masked_fill(~where, -math.inf).amax())
        rest = Operand(added.masked_fill(where, 0.0), bias.axes)
        unmasked = replace(self, zeroed=None, changes=(*self.changes, (rest, None)))
        return unmasked.filled(Operand(where, bias.axes), most)

    def filled(self, where: Operand, value: float) -> "Scores | None":
        """Filled with a number that hides; None for one that does not."""
        return replace(self, changes=(*self.changes, (where, value))) if hides(value) else None

    def call(self, axes: list[Axis], folded_heads: int | None) -> Call:
        """The call of attention whose weights are the softmax of these scores.

        Args:
            axes: The dimensions of the tensor that meets the softmax.
            folded_heads: Heads that are known to be folded into its leading dimension.
        """
        if self.zeroed is not None:
            raise ProbeError(
                "scores that were multiplied by 0 must be hidden; got some that were not. Fill "
                "them with -inf."
            )
        batch, heads = _batch_and_heads(axes, folded_heads)
        rows, columns = self.left.shape[1], self.right.shape[1]
        whole = (batch, heads, rows, columns)
        q, k = (x.reshape(batch, heads, *x.shape[1:]) for x in (self.left, self.right))
        bias: Tensor | None = None
        filled: Tensor | None = None
        level = torch.zeros(1, 1, 1, 1, dtype=q.dtype, device=q.device)
        for operand, value in self.changes:
            there = operand.four(*whole)
            if value is None:
                added = there * operand.factor
                bias, level = added if bias is None else bias + added, level + added
            else:
                there = there.to(torch.bool)
                filled = there if filled is None else filled | there
                level = torch.where(there, value, level)
        seen = None if filled is None else ~filled.expand(-1, -1, rows, columns)
        if seen is not None:
            level = level.expand(-1, -1, rows, columns)
            blank = _blank(seen, level)
            # Whatever a blank row's products are, its softmax is that of what it was filled with.
            q = q.masked_fill(blank, 0.0)
            seen = torch.where(blank, level > -math.inf, seen)
            if bool((blank & seen & (level != level.amax(dim=-1, keepdim=True))).any()):
                bias = torch.where(blank, level, 0.0 if bias is None else bias)
            elif bias is not None:
                bias = bias.masked_fill(blank, 0.0)
        return prepare(
            q, k, k, seen, bias=bias, scale=self.scale, softcap=self.softcap, sink_logits=None,
            dropout=0.0, q_pos=None, kv_pos=None, need="weights",
        )  # fmt: skip


def hides(value: float) -> bool:
    """Whether a score is so low that its weight is 0 beside any usual one."""
    return value < -1000


def _blank(seen: Tensor, level: Tensor) -> Tensor:
    """Rows (..., rows, 1) in which no key stands out from those that were filled.

    Args:
        seen: Keys that were not filled.
        level: What all of them were filled with, or what was added to them.

    Raises:
        ProbeError: If some of a row were filled, and what was added to all others is as low.
    """
    there = level > -math.inf
    stands_out = (seen & (level >= -1000)).any(dim=-1, keepdim=True)
    added, filled = ((which & there).any(dim=-1, keepdim=True) for which in (seen, ~seen))
    if bool((~stands_out & added & filled).any()):
        raise ProbeError(
            "a row must have a key that nothing hides, or be hidden by fills alone; got one hidden "
            "by a fill and an added mask. Hide by one of the two."
        )
    return ~stands_out & ~added


def four_of(x: Tensor, axes: list[Axis], folded_heads: int | None) -> Tensor:
    """A tensor with these dimensions as (batch, heads, rows, columns)."""
    batch, heads = _batch_and_heads(axes, folded_heads)
    rows, columns = (
        next((axis.size for axis in axes if axis.role == role), 1) for role in ("row", "column")
    )
    order = leads_in_order(axes)
    order += [i for role in ("row", "column") for i, axis in enumerate(axes) if axis.role == role]
    rest = [i for i in range(x.ndim) if i not in order]
    return x.permute(*rest, *order).reshape(batch, heads, rows, columns)


def _batch_and_heads(axes: list[Axis], folded_heads: int | None) -> tuple[int, int]:
    # Where code folds heads into the batch nothing tells them apart; torch's own layer says how.
    before = [axis.size for axis in axes if axis.role == "lead"]
    tail = sum(axis.role != "lead" for axis in axes)
    # Rows or columns of length 1 stand last, as dimensions that count nothing.
    before = before[: len(before) - (2 - tail)] if tail < 2 else before
    ordered = [axes[i].size for i in leads_in_order(axes)]
    products = math.prod(ordered)
    if folded_heads is not None and products % folded_heads == 0 and len(before) < 2:
        return products // folded_heads, folded_heads
    if len(before) < 2:
        return products, 1
    if before[-1] == 1 or not ordered:
        return products, 1
    return products // ordered[-1], ordered[-1]
