"""The least and the greatest of what is known of the tokens in a block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.masks.facts import Tokens

FAR = 2**62


@dataclass(frozen=True)
class Extent:
    """Positions and marks of one sequence's tokens, by blocks of 1, 2, 4, ... leaves.

    Args:
        length: How many tokens.
        block: Tokens in a leaf.
        ranges: For each fact (positions under the name "") its (least, greatest), by level, then
            by block; least above greatest where nobody is there.
        holes: Whether a token is absent, by level, then by block; None if all are there.
    """

    length: int
    block: int
    ranges: dict[str, list[list[tuple[int, int]]]]
    holes: list[list[bool]] | None

    @property
    def leaves(self) -> int:
        """How many blocks of the smallest size."""
        return -(-self.length // self.block)

    @classmethod
    def of(cls, tokens: Tokens, sequence: int, block: int, levels: int) -> "Extent":
        """What is known of the tokens of one sequence, by blocks."""
        absent = None if tokens.absent is None else _row(tokens.absent, sequence)
        facts = {name: _row(mark, sequence).long() for name, mark in tokens.marks.items()}
        ranges = {name: _pyramid(fact, absent, block, levels) for name, fact in facts.items()}
        if tokens.is_run and absent is None:
            ranges[""] = _run(int(tokens.position), tokens.length, block, levels)
        else:
            positions = _row(tokens.positions(), sequence)
            ranges[""] = _pyramid(positions, absent, block, levels)
        holes = None
        if absent is not None:
            pyramid = _pyramid(absent.long(), None, block, levels)
            holes = [[bool(high) for _, high in level] for level in pyramid]
        return cls(tokens.length, block, ranges, holes)


def _row(fact: Tensor, sequence: int) -> Tensor:
    if fact.ndim == 1:
        return fact
    return fact[sequence if fact.shape[0] > 1 else 0]


def _run(first: int, length: int, block: int, levels: int) -> list[list[tuple[int, int]]]:
    last = first + length - 1
    return [
        [
            (start, min(start + (block << level) - 1, last))
            for start in range(first, last + 1, block << level)
        ]
        for level in range(levels)
    ]


def _pyramid(
    fact: Tensor, absent: Tensor | None, block: int, levels: int
) -> list[list[tuple[int, int]]]:
    low = fact if absent is None else fact.masked_fill(absent, FAR)
    high = fact if absent is None else fact.masked_fill(absent, -FAR)
    found = []
    for level in range(levels):
        size = block if level == 0 else 2
        low, high = _blocks(low, size, FAR).amin(-1), _blocks(high, size, -FAR).amax(-1)
        found.append(list(zip(low.tolist(), high.tolist(), strict=True)))
    return found


def _blocks(fact: Tensor, size: int, void: int) -> Tensor:
    missing = -fact.shape[0] % size
    return torch.nn.functional.pad(fact, (0, missing), value=void).view(-1, size)
