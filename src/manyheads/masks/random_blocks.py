"""Random blocks of keys, the same ones every time."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TypeVar

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Side
from manyheads.shapes import check_count

Number = TypeVar("Number", int, Tensor)


@dataclass(frozen=True, eq=False)
class RandomBlocks(Mask):
    """Each block of queries sees a few blocks of keys, drawn for each head.

    BigBird is ``Window(w) | Global(g) | RandomBlocks(...)``. Nothing is drawn from a generator:
    which blocks a query sees follows from seed, head and block alone, so that chunks, caches and
    processes agree.

    Args:
        count: How many key blocks each query block sees.
        block: Tokens in a block.
        length: Tokens that the blocks are drawn from: the longest sequence. Later ones are in no
            block.
        seed: Another seed draws other blocks.

    Raises:
        OptionError: If a number is below 1, a block longer than `length`, or there are fewer
            blocks than `count`.

    Source:
        Zaheer et al. 2020 (arXiv:2007.14062), section 2.

    Example:
        >>> import manyheads as mh
        >>> mask = mh.RandomBlocks(2, block=4, length=32)
        >>> mask.dense(32).sum(-1).unique().tolist()
        [8]
    """

    count: int
    block: int
    length: int
    seed: int = 0

    reads_head = True

    def __post_init__(self) -> None:
        for name in ("count", "block", "length"):
            check_count(name, getattr(self, name))
        # Numbers of a fixed width would overflow in the hash.
        object.__setattr__(self, "seed", check_count("seed", self.seed, least=0))
        if self.block > self.length:
            raise OptionError(
                f"block must be at most length={self.length}; got block={self.block}. Make blocks "
                f"smaller, or name the longest sequence as length."
            )
        if self.count > self.blocks:
            raise OptionError(
                f"count must be at most the {self.blocks} blocks of {self.block} in "
                f"length={self.length}; got count={self.count}. Draw fewer, or make blocks smaller."
            )

    @property
    def blocks(self) -> int:
        """How many blocks of keys there are to draw from."""
        return -(-self.length // self.block)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        key_block = kv.position // self.block
        first = _hash(self.seed, head, q.position // self.block) % self.blocks
        stride = self._stride()
        seen = torch.zeros((), dtype=torch.bool, device=kv.position.device)
        for draw in range(self.count):
            seen = seen | (key_block == (first + draw * stride) % self.blocks)
        return seen

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        if head is None:
            return True, False
        first, last = q_lo // self.block, q_hi // self.block
        drawn = _drawn(self, head, first, last)
        wanted = kv_lo // self.block, kv_hi // self.block
        found = bisect_right(drawn, wanted[1]) - bisect_left(drawn, wanted[0])
        return found > 0, first == last and found == wanted[1] - wanted[0] + 1

    def _stride(self) -> int:
        # Steps of a stride without a factor in common with the number of blocks never meet again.
        stride = max(int(self.blocks * 0.618), 1)
        while gcd(stride, self.blocks) != 1:
            stride += 1
        return stride


@lru_cache(maxsize=2**14)
def _drawn(rule: RandomBlocks, head: int, first: int, last: int) -> list[int]:
    """The key blocks that query blocks ``first`` to ``last`` see, in order."""
    stride, draws = rule._stride(), range(rule.count)
    starts = [_hash(rule.seed, head, block) for block in range(first, last + 1)]
    return sorted({(start + draw * stride) % rule.blocks for start in starts for draw in draws})


def _hash(seed: int, head: Number, block: Number) -> Number:
    """A number of 31 bits that looks random, the same on every machine."""
    of_seed = (seed * 104_729 + 12_345) & 0x7FFFFFFF  # a seed may have more bits than a tensor
    x = (head * 1_000_003 + block * 7_919 + of_seed) & 0x7FFFFFFF
    for multiplier in (0x2C1B3C6D, 0x297A2D39):
        x = ((x ^ (x >> 15)) * multiplier) & 0x7FFFFFFF
    return x ^ (x >> 15)
