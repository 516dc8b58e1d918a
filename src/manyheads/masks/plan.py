"""Which blocks of queries see which blocks of keys, told without asking of any pair."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from manyheads.masks.base import Mask
from manyheads.masks.bound import Bound
from manyheads.masks.dense import check_heads
from manyheads.masks.facts import Tokens
from manyheads.masks.per_head import of_head
from manyheads.masks.squares import Part, has_no_tensors, seen_blocks

Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Row:
    """A block of queries, and all keys of which it may see some.

    Args:
        start: Its first query, counted from 0; `stop` is the one after its last.
        stop: See `start`.
        runs: The keys, as (start, stop), in order.
        likeness: How the keys are seen, in stretches of (keys, likeness), True where all of them
            surely are; None where that is so everywhere. Rows of equal likeness, in blocks of
            equal sizes, have the same mask.
    """

    start: int
    stop: int
    runs: Runs
    likeness: tuple[tuple[int, Hashable], ...] | None

    @property
    def keys(self) -> int:
        """How many keys."""
        return sum(stop - start for start, stop in self.runs)

    @property
    def pairs(self) -> int:
        """How many pairs are computed."""
        return (self.stop - self.start) * self.keys

    def blocks(self, block: int) -> Iterator[tuple[int, bool]]:
        """Each block of keys, counted from 0, and whether all of its pairs surely are seen."""
        alike = ((self.keys, True),) if self.likeness is None else self.likeness
        whole = [like is True for count, like in alike for _ in range(-(-count // block))]
        numbers = [n for start, stop in self.runs for n in range(start // block, -(-stop // block))]
        yield from zip(numbers, whole, strict=True)


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """What the blocks of queries of one sequence see, for one head or for all of them.

    Args:
        bound: The mask.
        sequence: Which sequence of the batch.
        head: Which query head; None for all.
        rows: The blocks of queries that see anybody.
        written: What `additive` keeps; shared with the plans of other heads.
    """

    bound: Bound
    sequence: int
    head: int | None
    rows: tuple[Row, ...]
    written: dict[Hashable, Tensor] = field(default_factory=dict, repr=False)

    @property
    def pairs(self) -> int:
        """How many pairs are computed."""
        return sum(row.pairs for row in self.rows)

    def additive(self, row: Row, num_heads: int, dtype: torch.dtype) -> Tensor | None:
        """`dense` as a kernel adds it to its scores, 0 or -inf; kept for rows that see alike."""
        key = (row.likeness, row.stop - row.start, num_heads, dtype)
        if key in self.written:
            return self.written[key]
        seen = self.dense(row, num_heads)
        if seen is None:
            return None
        added = torch.where(seen, seen.new_zeros((), dtype=dtype), -torch.inf)
        held = sum(tensor.numel() for tensor in self.written.values()) + added.numel()
        # A fake tensor, made to learn shapes, means nothing after its call.
        if has_no_tensors(self.bound) and held <= _WRITTEN_KEPT and type(added) is Tensor:
            self.written[key] = added
        return added

    def dense(self, row: Row, num_heads: int) -> Tensor | None:
        """Who sees whom in one row: bool (1, heads or 1, queries, keys); None if all see all."""
        if row.likeness is None:
            return None
        bound, where = self.bound, self.sequence
        index = torch.cat([torch.arange(*run) for run in row.runs]).to(bound.kv.device)
        heads = torch.arange(num_heads) if self.head is None else torch.tensor([self.head])
        queries = torch.arange(row.start, row.stop).to(bound.q.device)
        q, kv = _pick(bound.q, where, queries), _pick(bound.kv, where, index)
        pairs = {
            name: _pick_pairs(fact, where, self.head)[..., row.start : row.stop, :][..., index]
            for name, fact in bound.pairs.items()
        }
        head = heads.to(bound.kv.device).view(-1, 1, 1)
        seen = of_head(bound.rule, self.head, num_heads).allows(
            head, q.side(-2), kv.side(-1, pairs)
        )
        seen = seen.expand(*seen.shape[:2], row.stop - row.start, row.keys)
        if q.absent is not None:
            seen = seen & ~q.absent[:, None, :, None]
        return seen if kv.absent is None else seen & ~kv.absent[:, None, None, :]


_PLANS: dict[Hashable, tuple[BlockPlan, ...]] = {}
_PLANS_KEPT, _WRITTEN_KEPT = 64, 2**20


def plan(bound: Bound, batch: int, num_heads: int, block: int) -> tuple[BlockPlan, ...]:
    """Plan the blocks of a call: one plan a sequence and head where they differ, else fewer.

    Nothing of q_len x kv_len is made: squares of blocks are judged by the rule's `bounds` at their
    corners, and divided where that leaves it open.

    Args:
        bound: The mask of the call.
        batch: How many sequences.
        num_heads: How many query heads.
        block: Queries, and keys, in a block.

    Returns:
        The plans: for all sequences alike if there is one for sequence 0 alone, and likewise heads.

    Example:
        >>> import manyheads as mh
        >>> from manyheads.masks.plan import plan
        >>> bound = mh.masks.bind(mh.Causal() & mh.Window(64), 1, 1024, 1024)
        >>> plan(bound, 1, 8, block=64)[0].rows[3].runs
        ((128, 256),)
    """
    for pair in bound.pairs.values():
        check_heads(pair, num_heads)
    heads = tuple(range(num_heads)) if reads_head(bound.rule) else (None,)
    free = has_no_tensors(bound)
    kept: dict[Hashable, tuple[BlockPlan, ...]] = _PLANS if free else bound.plans
    key: Hashable = (heads, block, batch)
    if free:
        lengths, device = (bound.q.length, bound.kv.length), bound.kv.device
        key = (bound.rule, lengths, bound.q.position, bound.kv.position, device, heads, block)
    if key not in kept:
        if len(kept) >= _PLANS_KEPT:
            kept.pop(next(iter(kept)))
        written: dict[Hashable, Tensor] = {}
        rules = [of_head(bound.rule, head, num_heads) for head in heads]
        kept[key] = tuple(
            BlockPlan(bound, sequence, head, _rows(bound, rule, sequence, head, block), written)
            for sequence in range(1 if free else batch)
            for head, rule in zip(heads, rules, strict=True)
        )
    return kept[key]


def reads_head(rule: Mask) -> bool:
    """Whether more can be said of one head than of all."""
    return any(part.reads_head for part in rule.parts())


def _rows(bound: Bound, rule: Mask, sequence: int, head: int | None, block: int) -> tuple[Row, ...]:
    found = seen_blocks(bound, rule, sequence, head, block)
    return tuple(
        _row(index, seen, block, bound.q.length, bound.kv.length)
        for index, seen in enumerate(found)
        if seen
    )


def _row(index: int, seen: list[Part], block: int, q_len: int, kv_len: int) -> Row:
    runs: list[tuple[int, int]] = []
    alike: list[tuple[int, Hashable]] = []
    for first, last, like in seen:
        start, stop = first * block, min(last * block, kv_len)
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
        # However squares were divided, keys that all are seen are one part.
        if alike and like is True and alike[-1][1] is True:
            alike[-1] = (alike[-1][0] + stop - start, True)
        else:
            alike.append((stop - start, like))
    likeness = None if all(like is True for _, like in alike) else tuple(alike)
    return Row(index * block, min((index + 1) * block, q_len), tuple(runs), likeness)


def _pick(tokens: Tokens, sequence: int, index: Tensor) -> Tokens:
    def pick(fact: Tensor) -> Tensor:
        fact = fact if fact.ndim == 2 else fact[None]
        return fact[sequence if fact.shape[0] > 1 else 0][index][None]

    position = tokens.position + index if tokens.is_run else pick(tokens.positions())
    absent = None if tokens.absent is None else pick(tokens.absent)
    marks = {name: pick(mark) for name, mark in tokens.marks.items()}
    return Tokens(len(index), position, absent, marks, tokens.device)


def _pick_pairs(fact: Tensor, sequence: int, head: int | None) -> Tensor:
    at = sequence if fact.shape[0] > 1 else 0
    fact = fact[at : at + 1]
    return fact if head is None or fact.shape[1] == 1 else fact[:, head : head + 1]
