"""What a mask looks like: in text, and in numbers."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.masks.base import Mask


@dataclass(frozen=True)
class Description:
    """How much a mask leaves.

    Args:
        mask: The mask, as it prints.
        seen: How many pairs may see each other.
        pairs: How many pairs there are.
        empty_rows: (batch, head, query index) of the queries that see nobody.
    """

    mask: str
    seen: int
    pairs: int
    empty_rows: tuple[tuple[int, int, int], ...]

    @property
    def density(self) -> float:
        """The fraction of pairs that may see each other, 0 to 1."""
        return self.seen / self.pairs if self.pairs else 0.0

    def __repr__(self) -> str:
        rows = len(self.empty_rows)
        if rows == 0:
            empty = "no empty row"
        else:
            places = ", ".join(f"batch {b} head {h} query {q}" for b, h, q in self.empty_rows[:3])
            empty = f"{rows} empty row{'s' * (rows > 1)}: {places}{', ...' * (rows > 3)}"
        return (
            f"{self.mask}: {self.seen} of {self.pairs} pairs ({self.density * 100:.1f} %), {empty}"
        )


def describe(mask: Mask, seen: Tensor) -> Description:
    """Count what a written-out mask, bool (batch, heads, q_len, kv_len), leaves."""
    empty = (~seen.any(dim=-1)).nonzero().tolist()
    rows = tuple((b, h, q) for b, h, q in empty)
    return Description(repr(mask), int(seen.sum()), seen.numel(), rows)


def draw(seen: Tensor, block: int = 1) -> str:
    """A line of █ and · for each query; batches and heads one below the other, with a title."""
    batch, heads = seen.shape[:2]
    shares = pool(seen, block)
    blocks = []
    for b in range(batch):
        for h in range(heads):
            title = f"batch {b} head {h}\n" if batch * heads > 1 else ""
            lines = ("".join(map(_cell, row)) for row in shares[b, h].tolist())
            blocks.append(title + "\n".join(lines))
    return "\n\n".join(blocks)


def _cell(share: float) -> str:
    return "·" if share == 0 else "█" if share == 1 else "▒"


def pool(seen: Tensor, block: int) -> Tensor:
    """The share of pairs, 0 to 1, that see each other in each square of blocks; the last are less.

    Args:
        seen: bool (..., q_len, kv_len).
        block: Queries, and keys, of a square.
    """
    q_len, kv_len = seen.shape[-2:]
    whole = F.pad(seen.float(), (0, -kv_len % block, 0, -q_len % block))
    found = whole.unflatten(-2, (-1, block)).unflatten(-1, (-1, block)).sum(dim=(-3, -1))
    rows, columns = (
        torch.tensor([min(block, length - start) for start in range(0, length, block)])
        for length in (q_len, kv_len)
    )
    return found / (rows[:, None] * columns).to(found.device)
