"""A cache in blocks, which rows share as long as they have a past in common."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from manyheads.cache.base import Cache
from manyheads.cache.blocks import BlockPool
from manyheads.cache.cached import Cached
from manyheads.cache.checks import (
    check_count_held,
    check_filled,
    check_kind,
    check_match,
    check_no_gradient,
    check_pair,
    check_rows,
)
from manyheads.cache.facts import beside
from manyheads.errors import OptionError
from manyheads.masks import Tokens
from manyheads.masks.facts import join
from manyheads.shapes import values_are_cheap

Tables = tuple[tuple[int, ...], ...]


class PagedCache(Cache):
    """Keep every key and value in blocks that are lent by a pool.

    Rows with a common past share its blocks: beams after a reorder, requests with the same
    system prompt after a split. A row that writes into a shared block is given a copy of that block
    alone. Padding before a row's first token takes no block, so requests of all lengths share a
    pool without waste, and blocks of a row that has ended are free at once.

    A call is shown a gathered copy of its keys and values.

    Args:
        pool: Where the blocks come from; caches of one layer may share a pool. None makes a pool
            of blocks of 16 tokens that grows.

    Raises:
        OptionError: If `pool` is no pool.

    Source:
        Kwon et al. 2023, section 4 (PagedAttention, arXiv:2309.06180).

    Example:
        >>> import torch, manyheads as mh
        >>> layer, prompt = mh.MultiHeadAttention(16, 4).eval(), mh.PagedCache()
        >>> with torch.no_grad():
        ...     _ = layer(torch.randn(1, 40, 16), mask=mh.Causal(), cache=prompt)
        ...     requests = prompt.split(torch.tensor([0, 0, 0]))  # shares three blocks
        ...     out = layer(torch.randn(3, 1, 16), mask=mh.Causal(), cache=requests)
        >>> prompt.pool.used  # the third block was copied for each of the three
        6
    """

    parts = (Tokens, Cached, BlockPool)

    def __init__(self, pool: BlockPool | None = None) -> None:
        if pool is not None and not isinstance(pool, BlockPool):
            raise OptionError(
                f"pool must be a BlockPool or None; got pool={pool!r}. Write "
                f"PagedCache(BlockPool(16))."
            )
        self.pool = BlockPool() if pool is None else pool
        self._tokens: Tokens | None = None
        self._tables: Tables = ()  # the blocks of each row
        self._starts: tuple[int, ...] = ()  # the columns before each row's first slot

    @property
    def tokens(self) -> Tokens | None:
        return self._tokens

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        tokens = self.follow(k.shape[2], k.device) if tokens is None else tokens
        check_pair(k, v, tokens)
        check_no_gradient(self, k, v)
        if self._tokens is None:
            self._check_pool(k, v)
            starts, held = _leading(tokens, k.shape[0]), 0
            joined = tokens
            tables: Tables = ((),) * k.shape[0]
        else:
            self._check_pool(k, v, rows=len(self._tables))
            starts, held, tables = self._starts, self.length, self._tables
            joined = join(self._tokens, tokens)
        self._tables = self._grown(tables, [held - start for start in starts], tokens.length, k, v)
        self._starts, self._tokens = starts, joined
        self._write(k, v, held)
        return self.read()

    def _check_pool(self, k: Tensor, v: Tensor, rows: int | None = None) -> None:
        if self.pool.k is None or self.pool.v is None:
            return
        for name, x, room in (("k", k, self.pool.k), ("v", v, self.pool.v)):
            like = room[:1].transpose(0, 1)[None]  # (1, heads, 1, width)
            check_match(like.expand(rows or x.shape[0], -1, -1, -1), x, name)

    def _grown(
        self, tables: Sequence[tuple[int, ...]], held: list[int], length: int, k: Tensor, v: Tensor
    ) -> Tables:
        """Tables with room for ``length`` more tokens, whose slots to write are nobody else's."""
        size, pool = self.pool.block, self.pool
        missing: list[int] = []
        shared: list[int | None] = []  # the block that a row's first new token falls into
        for table, count in zip(tables, held, strict=True):
            # Of a row that begins within this chunk, count is below 0.
            missing.append(-(-max(count + length, 0) // size) - len(table))
            last = table[-1] if count > 0 and count % size and length else None
            shared.append(last)
        copies: list[bool] = []
        left: dict[int, int] = {}
        for last in shared:
            if last is None:
                copies.append(False)
                continue
            left.setdefault(last, pool.holders(last))
            # The last of a block's holders may keep it.
            copies.append(left[last] > 1)
            left[last] -= 1
        pool.check_free(sum(missing) + sum(copies))
        grown = []
        for table, more, last, copies_last in zip(tables, missing, shared, copies, strict=True):
            if copies_last:
                assert last is not None
                table = (*table[:-1], pool.copy(last))
                pool.release([last])
            grown.append((*table, *pool.fresh(more, k, v)))
        return tuple(grown)

    def _slots(self, first: int, last: int, device: torch.device) -> Tensor:
        """int (batch, columns): where the tokens of some columns lie; 0 where nobody is."""
        size, most = self.pool.block, max(map(len, self._tables), default=0)
        rows = [table + (0,) * (most + 1 - len(table)) for table in self._tables]
        table = torch.tensor(rows, device=device).view(len(rows), most + 1)
        starts = torch.tensor(self._starts, device=device).view(-1, 1)
        place = torch.arange(first, last, device=device) - starts
        there = place.clamp(min=0)
        slots = table.gather(1, there // size) * size + there % size
        return torch.where(place >= 0, slots, 0)

    def _write(self, k: Tensor, v: Tensor, held: int) -> None:
        if not k.shape[0] * k.shape[2]:
            return
        slots = self._slots(held, held + k.shape[2], k.device).flatten()
        for room, x in ((self.pool.k, k), (self.pool.v, v)):
            assert room is not None
            room[slots] = x.detach().transpose(1, 2).flatten(0, 1)
            room[0] = 0.0  # where absent tokens before a row's first one were written

    def read(self) -> Cached:
        tokens = self._tokens
        if tokens is None or self.pool.k is None or self.pool.v is None:
            return check_filled(None)
        slots = self._slots(0, tokens.length, self.pool.k.device)
        k, v = (x[slots].transpose(1, 2) for x in (self.pool.k, self.pool.v))
        return Cached(k, v, tokens)

    def rollback(self, count: int) -> None:
        check_count_held(count, self.length)
        if count == self.length:
            self._take((), (), None)
        elif count and self._tokens is not None:
            length, size = self.length - count, self.pool.block
            # A row of which nothing is left begins with whatever comes next.
            starts = tuple(min(start, length) for start in self._starts)
            kept = [-(-(length - start) // size) for start in starts]
            tables = tuple(t[:n] for t, n in zip(self._tables, kept, strict=True))
            self._take(tables, starts, self._tokens.first(length))

    def reorder(self, index: Tensor) -> None:
        if self._tokens is None:
            check_filled(None)
            return
        rows = check_rows(index, len(self._tables)).tolist()
        tokens = self._tokens.rows(index.to(self._tokens.positions().device))
        tables = tuple(self._tables[row] for row in rows)
        self._take(tables, tuple(self._starts[row] for row in rows), tokens)

    def _take(self, tables: Tables, starts: tuple[int, ...], tokens: Tokens | None) -> None:
        """Hold these blocks instead of one's own."""
        before = self._tables
        self._tables, self._starts, self._tokens = tables, starts, tokens
        self.pool.hold(_all(tables))
        self.pool.release(_all(before))

    def merge(self, other: "PagedCache") -> None:
        check_kind(self, other)
        if other._tokens is None:
            return
        if other.pool is not self.pool:
            theirs = other.read()
            part = type(self)(self.pool)
            part.append(*theirs)
            if self._tokens is None:
                self._take(part._tables, part._starts, part._tokens)
            else:
                self.merge(part)
            return
        if self._tokens is None:
            self._take(other._tables, other._starts, other._tokens)
            return
        mine, theirs_ = self._tokens, other._tokens
        tokens = beside(mine, len(self._tables), theirs_, len(other._tables))
        starts = (
            *(start + tokens.length - mine.length for start in self._starts),
            *(start + tokens.length - theirs_.length for start in other._starts),
        )
        self._take((*self._tables, *other._tables), starts, tokens)

    def _hold(self, held: Cached) -> None:
        self._take((), (), None)
        self.append(*held)

    @contextmanager
    def serving(self, layer: object) -> Iterator[None]:
        before = failed = self._tables
        try:
            with super().serving(layer):
                try:
                    yield
                except BaseException:
                    failed = self._tables
                    raise
        except BaseException:
            # What was released meanwhile has other holders, or it would not have been shared.
            self.pool.hold(_all(before))
            self.pool.release(_all(failed))
            raise

    def _tight(self) -> "PagedCache":
        part = type(self)(BlockPool(self.pool.block, blocks=self.pool.blocks))
        if self._tokens is not None:
            part.append(*self.read())
        return part

    def __copy__(self) -> "PagedCache":
        part = object.__new__(type(self))
        vars(part).update(super().__getstate__())
        self.pool.hold(_all(self._tables))
        return part

    def __getstate__(self) -> dict[str, Any]:
        # A copy for elsewhere takes its own blocks along, and nobody else's.
        part = self._tight()
        state = {**vars(part), "_layer": None}
        part._tables = ()
        return state

    def __del__(self) -> None:
        if "pool" in vars(self):
            self.pool.release(_all(vars(self).get("_tables", ())))

    def memory_bytes(self) -> int:
        """Bytes of the blocks that this cache holds, each once however many rows share it."""
        return len(set(_all(self._tables))) * self.pool.block_bytes()


def _all(tables: Tables) -> list[int]:
    return [block for table in tables for block in table]


def _leading(tokens: Tokens, batch: int) -> tuple[int, ...]:
    """How many absent tokens each row begins with."""
    absent = tokens.absent
    if absent is None or not values_are_cheap(absent) or not absent.shape[1]:
        return (0,) * batch
    counts = absent.long().cumprod(dim=1).sum(dim=1).expand(batch).tolist()
    return tuple(int(count) for count in counts)
