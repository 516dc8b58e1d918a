"""Memory in blocks of tokens that several rows may share."""

import torch
from torch import Tensor

from manyheads.errors import CacheError
from manyheads.shapes import check_count


class BlockPool:
    """Blocks of keys and values, who holds them, and which are free.

    A block that several rows hold is written by none of them: `fresh` and `copy` give a row its
    own. Block 0 is nobody's, and holds zeros for tokens that are absent.

    Args:
        block: Tokens a block.
        blocks: How many blocks there may be; None lets the pool grow.

    Raises:
        OptionError: If a number counts nothing.

    Source:
        Kwon et al. 2023, section 4 (arXiv:2309.06180).
    """

    def __init__(self, block: int = 16, *, blocks: int | None = None) -> None:
        self.block = check_count("block", block)
        self.blocks = None if blocks is None else check_count("blocks", blocks)
        self.k: Tensor | None = None  # (slots, num_kv_heads, head_dim)
        self.v: Tensor | None = None
        self._holders = [1]
        self._free: list[int] = []

    @property
    def used(self) -> int:
        """How many blocks somebody holds."""
        return len(self._holders) - len(self._free) - 1

    def holders(self, block: int) -> int:
        """How many rows hold a block."""
        return self._holders[block]

    def check_free(self, count: int) -> None:
        """Refuse to give more blocks than there are."""
        if self.blocks is not None and self.used + count > self.blocks:
            raise CacheError(
                f"tokens must fit the pool of {self.blocks} blocks of {self.block}; got {count} "
                f"blocks more, and {self.blocks - self.used} are free. Drop rows that have "
                f"ended, or make the pool larger."
            )

    def fresh(self, count: int, k: Tensor, v: Tensor) -> list[int]:
        """Blocks for one new holder, for keys and values like these."""
        self.check_free(count)
        while len(self._free) < count:
            self._free.append(len(self._holders))
            self._holders.append(0)
        self._make_room(k, v)
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        return taken

    def copy(self, block: int) -> int:
        """A block of one's own with what another holds."""
        assert self.k is not None and self.v is not None
        (own,) = self.fresh(1, self.k, self.v)
        size = self.block
        for x in (self.k, self.v):
            x[own * size : (own + 1) * size] = x[block * size : (block + 1) * size]
        return own

    def hold(self, blocks: list[int]) -> None:
        """Add a holder to each of these blocks."""
        for block in blocks:
            self._holders[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Take a holder from each of these blocks; those without one are free."""
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)

    def _make_room(self, k: Tensor, v: Tensor) -> None:
        slots = len(self._holders) * self.block
        held = 0 if self.k is None else self.k.shape[0]
        if slots <= held:
            return
        # Half as much again, so that a step seldom copies the pool.
        room = slots + slots // 2
        if self.blocks is not None:
            room = min(room, (self.blocks + 1) * self.block)
        # Ordinary tensors even under inference_mode: the pool may be used outside of it later.
        with torch.inference_mode(False), torch.no_grad():
            made = [x.new_zeros(room, x.shape[-3 if x.ndim == 4 else -2], x.shape[-1])
                    for x in (k, v)]  # fmt: skip
            for new, old in zip(made, (self.k, self.v), strict=True):
                if old is not None:
                    new[:held] = old
        self.k, self.v = made

    def block_bytes(self) -> int:
        """Bytes of a block of keys and values."""
        return sum(x[: self.block].nbytes for x in (self.k, self.v) if x is not None)

    def memory_bytes(self) -> int:
        """Bytes that the pool takes, free blocks included."""
        return sum(x.nbytes for x in (self.k, self.v) if x is not None)
