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
        biases: What was added.
        fills: Where they were filled with a number, and with which.
        zeroed: Where they were multiplied by 0, until what is added there hides them.
    """

    left: Tensor
    right: Tensor
    scale: float = 1.0
    softcap: float | None = None
    biases: tuple[Operand, ...] = ()
    fills: tuple[tuple[Operand, float], ...] = ()
    zeroed: Operand | None = None

    @property
    def is_plain(self) -> bool:
        """Whether they are a product times a number, and no more."""
        return not (self.softcap or self.biases or self.fills or self.zeroed)

    def times(self, factor: float) -> "Scores | None":
        """Multiplied by a number."""
        if self.softcap is not None and not (factor > 0 and math.isfinite(factor)):
            return None
        biases = tuple(replace(bias, factor=bias.factor * factor) for bias in self.biases)
        fills = tuple((where, value * factor) for where, value in self.fills)
        cap = None if self.softcap is None else self.softcap * factor
        return replace(self, scale=self.scale * factor, softcap=cap, biases=biases, fills=fills)

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
            return replace(self, biases=(*self.biases, bias))
        if self.zeroed.axes != bias.axes:
            return None
        where, added = torch.broadcast_tensors(self.zeroed.tensor, bias.tensor * bias.factor)
        most = float(added.masked_fill(~where, -math.inf).amax())
        rest = Operand(added.masked_fill(where, 0.0), bias.axes)
        unmasked = replace(self, zeroed=None, biases=(*self.biases, rest))
        return unmasked.filled(Operand(where, bias.axes), most)

    def filled(self, where: Operand, value: float) -> "Scores | None":
        """Filled with a number that hides; None for one that does not."""
        return replace(self, fills=(*self.fills, (where, value))) if value < -1000 else None

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
        for operand in self.biases:
            added = operand.four(*whole) * operand.factor
            bias = added if bias is None else bias + added
        seen = None
        if self.fills:
            hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=q.device)
            evenly = hidden
            for operand, value in self.fills:
                where = operand.four(*whole).to(torch.bool)
                hidden = hidden | where
                if value > -math.inf:
                    evenly = evenly | where
            # Softmax spreads a row evenly whose every score was filled with one finite number.
            evenly = evenly.expand(*evenly.shape[:2], rows, columns).all(dim=-1, keepdim=True)
            q = q.masked_fill(evenly, 0.0)
            bias = None if bias is None else bias.masked_fill(evenly, 0.0)
            seen = (~hidden | evenly).expand(-1, -1, rows, columns)
        return prepare(
            q, k, k, seen, bias=bias, scale=self.scale, softcap=self.softcap, sink_logits=None,
            dropout=0.0, q_pos=None, kv_pos=None, need="weights",
        )  # fmt: skip


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
