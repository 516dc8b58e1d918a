"""A settled mask, cut to some of its tokens."""

from torch import Tensor

from manyheads.masks.bound import Bound
from manyheads.masks.facts import Tokens

Chosen = slice | Tensor
"""Tokens of one side: a slice, or their indices, int (length,)."""


def cut(bound: Bound, sequence: slice, rows: Chosen, keys: Chosen) -> Bound:
    """What a mask says of some sequences, queries and keys of its call.

    Args:
        bound: The mask.
        sequence: Which sequences.
        rows: Which queries.
        keys: Which keys.
    """
    pairs = {name: take_pairs(fact, sequence, rows, keys) for name, fact in bound.pairs.items()}
    return Bound(
        bound.rule, _take(bound.q, sequence, rows), _take(bound.kv, sequence, keys), pairs, True
    )


def take_pairs(pairs: Tensor, sequence: slice, rows: Chosen, keys: Chosen) -> Tensor:
    """Some of what is known of pairs, (batch or 1, heads or 1, q_len or 1, kv_len or 1)."""
    if pairs.shape[0] > 1:
        pairs = pairs[sequence]
    if pairs.shape[2] > 1:
        pairs = pairs[:, :, rows]
    return pairs[..., keys] if pairs.shape[3] > 1 else pairs


def take_places(position: int | Tensor, sequence: slice, chosen: Chosen) -> int | Tensor:
    """The positions of some tokens: still a run where a run was sliced."""
    if isinstance(position, Tensor):
        if position.ndim == 2 and position.shape[0] > 1:
            position = position[sequence]
        return position[..., chosen]
    return position + (chosen if isinstance(chosen, Tensor) else chosen.start)


def _take(tokens: Tokens, sequence: slice, chosen: Chosen) -> Tokens:
    def take(fact: Tensor) -> Tensor:
        return (fact[sequence] if fact.shape[0] > 1 else fact)[:, chosen]

    length = len(chosen) if isinstance(chosen, Tensor) else chosen.stop - chosen.start
    position = take_places(tokens.position, sequence, chosen)
    absent = None if tokens.absent is None else take(tokens.absent)
    marks = {name: take(mark) for name, mark in tokens.marks.items()}
    device = tokens.device
    if device is None and isinstance(position, Tensor):
        device = position.device
    return Tokens(length, position, absent, marks, device)
