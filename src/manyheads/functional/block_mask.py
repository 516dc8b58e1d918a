"""A mask as FlexAttention takes it: the blocks that are seen, and a function of one pair."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyheads.masks import Bound, Mask
from manyheads.masks.facts import Side, Tokens
from manyheads.masks.plan import plan

BLOCK = 128
"""Queries, and keys, in a block: what torch's kernels are tuned for."""

Pair = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of sequence, head, query and key, each a single index."""


def block_mask(bound: Bound, batch: int, num_heads: int, function: Pair) -> Any:
    """torch's BlockMask of one call, from our own plan: its own way asks about every pair.

    Args:
        bound: The mask.
        batch: How many sequences.
        num_heads: How many query heads.
        function: What says of a pair whether it is seen, in blocks that are seen in part.
    """
    from torch.nn.attention.flex_attention import BlockMask

    # A tensor made under inference_mode cannot be saved for a gradient later.
    key = ("flex", batch, num_heads, torch.is_inference_mode_enabled())
    if key not in bound.plans:
        device = bound.kv.device
        some, every = seen_blocks(bound, batch, num_heads)
        by_query = (*_ordered(some, device), *_ordered(every, device))
        by_key = (*_ordered(some.mT, device), *_ordered(every.mT, device))
        bound.plans[key] = (*by_query, *by_key)
    lengths, tensors = (bound.q.length, bound.kv.length), bound.plans[key]
    options: dict[str, Any] = {"BLOCK_SIZE": (BLOCK, BLOCK), "mask_mod": function}
    return BlockMask(lengths, *tensors, **options)


def seen_blocks(bound: Bound, batch: int, num_heads: int) -> tuple[Tensor, Tensor]:
    """Which blocks are seen in part, and which surely whole: bool (batch or 1, heads or 1, ...)."""
    plans = plan(bound.on_cpu(), batch, num_heads, BLOCK)
    sequences = 1 + max(each.sequence for each in plans)
    heads = 1 if plans[0].head is None else num_heads
    rows, columns = -(-bound.q.length // BLOCK), -(-bound.kv.length // BLOCK)
    some, every = torch.zeros(2, sequences, heads, rows, columns, dtype=torch.bool)
    for each in plans:
        place = each.sequence, each.head or 0
        for row in each.rows:
            for column, whole in row.blocks(BLOCK):
                (every if whole else some)[(*place, row.start // BLOCK, column)] = True
    # Where a block juts out beyond the tokens, the kernel has to ask.
    for at, juts in ((-2, bound.q.length % BLOCK), (-1, bound.kv.length % BLOCK)):
        if juts:
            some.select(at, -1).logical_or_(every.select(at, -1))
            every.select(at, -1).fill_(False)
    return some, every


def _ordered(seen: Tensor, device: torch.device | None) -> tuple[Tensor, Tensor]:
    """How many blocks each row sees, and which, those first."""
    count = seen.sum(dim=-1, dtype=torch.int32)
    order = seen.int().argsort(dim=-1, descending=True, stable=True).int()
    return count.to(device), order.contiguous().to(device)


class OneSide(NamedTuple):
    """Facts of queries or keys, to be read a token at a time.

    Args:
        position: (length,) or (batch, length); None where it is the index.
        absent: bool, likewise; None if nobody is.
        marks: Further facts by name, likewise.
    """

    position: Tensor | None
    absent: Tensor | None
    marks: Mapping[str, Tensor]

    @classmethod
    def of(cls, tokens: Tokens) -> "OneSide":
        """The facts of these tokens."""
        position = None if tokens.is_run and tokens.position == 0 else tokens.positions()
        absent = None if tokens.absent is None else _narrow(tokens.absent)
        marks = {name: _narrow(mark) for name, mark in tokens.marks.items()}
        return cls(None if position is None else _narrow(position), absent, marks)

    def place(self, batch: Tensor, token: Tensor) -> Tensor:
        """Where a token stands, wide enough for any arithmetic that a rule may do."""
        return token.long() if self.position is None else _at(self.position, batch, token)

    def side(self, batch: Tensor, token: Tensor) -> Side:
        """What a rule reads of one token."""
        marks = {name: _at(mark, batch, token) for name, mark in self.marks.items()}
        return Side(self.place(batch, token), marks)


def _narrow(fact: Tensor) -> Tensor:
    return fact[0] if fact.ndim == 2 and fact.shape[0] == 1 else fact


def _at(fact: Tensor, batch: Tensor, token: Tensor) -> Tensor:
    return fact[token] if fact.ndim == 1 else fact[batch, token]


class OfPairs(NamedTuple):
    """A tensor of four dimensions, of which those of size 1 are left out, to be read pair by pair.

    Args:
        tensor: What is left of it.
        axes: Which dimensions these are.
    """

    tensor: Tensor
    axes: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "OfPairs":
        """This tensor; one of a single number keeps its last dimension."""
        axes = tuple(axis for axis in range(4) if tensor.shape[axis] > 1) or (3,)
        for axis in reversed([axis for axis in range(4) if axis not in axes]):
            tensor = tensor.select(axis, 0)
        return cls(tensor, axes)

    def at(self, *place: Tensor) -> Tensor:
        """The number of one sequence, head, query and key."""
        single = self.tensor.shape == (1,)
        return self.tensor[tuple(place[axis] * 0 if single else place[axis] for axis in self.axes)]


def pair_function(bound: Bound, rule: Callable[[], Mask]) -> Pair:
    """Whether a query sees a key, as a plain function of four: FlexAttention counts them.

    Args:
        bound: The mask, of which the facts are read.
        rule: Gives its rule, from where a compiler should find it.
    """
    q, kv = OneSide.of(bound.q), OneSide.of(bound.kv)
    pairs = {name: OfPairs.of(fact) for name, fact in bound.pairs.items()}

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        q_side, kv_side = q.side(batch, query), kv.side(batch, key)
        if pairs:
            whole = {name: fact.at(batch, head, query, key) for name, fact in pairs.items()}
            kv_side = Side(kv_side.position, {**kv_side.marks, **whole})
        seen = rule().allows(head.long(), q_side, kv_side)
        for side, token in ((q, query), (kv, key)):
            if side.absent is not None:
                seen = seen & ~_at(side.absent, batch, token)
        return seen

    return sees
