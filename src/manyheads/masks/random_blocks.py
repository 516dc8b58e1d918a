"""Random blocks of keys, the same ones every time."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Side
from manyheads.shapes import check_count


@dataclass(frozen=True, eq=False)
class RandomBlocks(Mask):
    """Each block of queries sees a few blocks of keys, drawn for each head.

    BigBird is ``Window(w) | Global(g) | RandomBlocks(...)``. Nothing is drawn from a generator:
    which blocks a query sees follows from seed, head and block alone, so that chunks, caches and
    processes agree.

    Args:
        count: How many key blocks each query block sees.
        block: Tokens in a block.
        length: Tokens that the blocks are drawn from: the longest sequence.
        seed: Another seed draws other blocks.

    Raises:
        OptionError: If a number is below 1, or there are fewer blocks than `count`.

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

    def __post_init__(self) -> None:
        for name in ("count", "block", "length"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, least=0)
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
        query_block = q_lo // self.block
        if head is None or query_block != q_hi // self.block:
            return True, False
        first = int(_hash(self.seed, torch.tensor(head), torch.tensor(query_block))) % self.blocks
        drawn = {(first + draw * self._stride()) % self.blocks for draw in range(self.count)}
        wanted = range(kv_lo // self.block, kv_hi // self.block + 1)
        return any(b in drawn for b in wanted), all(b in drawn for b in wanted)

    def _stride(self) -> int:
        # Steps of a stride without a factor in common with the number of blocks never meet again.
        stride = max(int(self.blocks * 0.618), 1)
        while gcd(stride, self.blocks) != 1:
            stride += 1
        return stride


def _hash(seed: int, head: Tensor, block: Tensor) -> Tensor:
    """A number of 31 bits that looks random, the same on every machine."""
    of_seed = (seed * 104_729 + 12_345) & 0x7FFFFFFF  # a seed may have more bits than a tensor
    x = (head * 1_000_003 + block * 7_919 + of_seed) & 0x7FFFFFFF
    for multiplier in (0x2C1B3C6D, 0x297A2D39):
        x = ((x ^ (x >> 15)) * multiplier) & 0x7FFFFFFF
    return x ^ (x >> 15)
