"""A batch cut into the stretches of queries and keys that have to do with each other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from manyheads.masks.algebra import And, Everyone, both
from manyheads.masks.base import Mask
from manyheads.masks.bound import Bound, simplify
from manyheads.masks.documents import SameDocument
from manyheads.masks.facts import Tokens

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Segment:
    """A stretch of queries that sees none but a stretch of keys.

    Args:
        q: The queries, (start, stop).
        kv: The keys, likewise.
        mask: Who of them sees whom.
    """

    q: Span
    kv: Span
    mask: Bound

    @property
    def pairs(self) -> float:
        """How many pairs a kernel computes; it skips the future of causal ones by itself."""
        area = (self.q[1] - self.q[0]) * (self.kv[1] - self.kv[0])
        return area / 2 if self.mask.is_below_diagonal else area


def segments(bound: Bound, sequence: int) -> list[Segment] | None:
    """The segments of one sequence, in the order of their queries; None where there are none.

    Queries that see nobody are in no segment. Absent tokens are left out at both ends; documents
    are segments if each is one stretch.

    Args:
        bound: The mask of the call, whose facts have values.
        sequence: Which sequence of the batch.
    """
    q, kv = _one(bound.q, sequence), _one(bound.kv, sequence)
    rule, fact = _without_documents(bound.rule)
    if fact is None:
        spans = list(_one_document(bound, q, kv))
    else:
        found = _documents(q.marks[fact][0], kv.marks[fact][0])
        if found is None:
            return None
        spans = found
        q, kv = (side.with_marks(_other_than(fact, side)) for side in (q, kv))
    return [Segment(*span, mask) for span in spans if (mask := _cut(rule, q, kv, *span))]


def _one(tokens: Tokens, sequence: int) -> Tokens:
    at = torch.tensor([sequence])
    one = tokens.rows(at.to(tokens.device) if tokens.device else at)
    if isinstance(one.position, Tensor) and one.position.ndim == 2:
        return Tokens(one.length, one.position[0], one.absent, one.marks, one.device)
    return one


def _other_than(fact: str, tokens: Tokens) -> dict[str, Tensor]:
    return {name: mark for name, mark in tokens.marks.items() if name != fact}


def _without_documents(rule: Mask) -> tuple[Mask, str | None]:
    """A rule without the first of its documents, and by which fact they are told apart."""
    if isinstance(rule, SameDocument):
        return Everyone(), rule.fact
    if isinstance(rule, And):
        left, fact = _without_documents(rule.left)
        if fact is not None:
            return both(left, rule.right), fact
        right, fact = _without_documents(rule.right)
        return both(rule.left, right), fact
    return rule, None


def _one_document(bound: Bound, q: Tokens, kv: Tokens) -> Iterator[tuple[Span, Span]]:
    (start, stop), keys = _present(q), _present(kv)
    cuts = {start, stop}
    if bound.rule.hides_future() and q.length == kv.length:
        # Square and so causal where queries are the keys; the later ones see all of them.
        cuts |= {min(max(cut, start), stop) for cut in keys}
    ends = sorted(cuts)
    for first, last in pairwise(ends):
        yield (first, last), keys


def _present(tokens: Tokens) -> Span:
    if tokens.absent is None:
        return 0, tokens.length
    there = (~tokens.absent[0]).nonzero()
    return (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 0)


def _documents(q: Tensor, kv: Tensor) -> list[tuple[Span, Span]] | None:
    keys: dict[int, Span] = {}
    for number, span in _stretches(kv):
        if number in keys:
            return None
        keys[number] = span
    return [(span, keys[number]) for number, span in _stretches(q) if number in keys]


def _stretches(ids: Tensor) -> list[tuple[int, Span]]:
    numbers, counts = torch.unique_consecutive(ids, return_counts=True)
    stops = counts.cumsum(0).tolist()
    spans = zip([0, *stops], stops, strict=False)
    return list(zip(numbers.tolist(), spans, strict=True))


def _cut(rule: Mask, q: Tokens, kv: Tokens, q_span: Span, kv_span: Span) -> Bound | None:
    """The mask of one segment; None if nobody in it sees anybody."""
    q, kv = _slice(q, *q_span), _slice(kv, *kv_span)
    if any(side.length == 0 or _nobody_is_there(side) for side in (q, kv)):
        return None
    rule = simplify(rule, q, kv)
    if q.is_run and kv.is_run:
        assert not isinstance(q.position, Tensor) and not isinstance(kv.position, Tensor)
        ends = (q.position, q.position + q.length - 1, kv.position, kv.position + kv.length - 1)
        if not rule.bounds(None, *ends)[0]:
            return None
    return Bound(rule, q, kv, clean=True)


def _nobody_is_there(tokens: Tokens) -> bool:
    return tokens.absent is not None and bool(tokens.absent.all())


def _slice(tokens: Tokens, start: int, stop: int) -> Tokens:
    absent = None if tokens.absent is None else tokens.absent[:, start:stop]
    if absent is not None and not absent.any():
        absent = None
    marks = {name: mark[:, start:stop] for name, mark in tokens.marks.items()}
    if isinstance(tokens.position, Tensor):
        position: int | Tensor = _as_run(tokens.position[start:stop])
    else:
        position = tokens.position + start
    return Tokens(stop - start, position, absent, marks, tokens.device)


def _as_run(position: Tensor) -> int | Tensor:
    if len(position) == 0:
        return 0
    first = int(position[0])
    run = torch.arange(first, first + len(position), device=position.device)
    return first if first >= 0 and torch.equal(position, run) else position
