"""A cache of the last tokens only."""

from typing import Any

import torch
from torch import Tensor

from manyheads.cache.base import Cache
from manyheads.cache.cached import Cached
from manyheads.cache.checks import (
    check_count_held,
    check_filled,
    check_match,
    check_pair,
    check_rows,
)
from manyheads.cache.facts import last, pick
from manyheads.cache.growing import extend
from manyheads.errors import CacheError
from manyheads.masks import Tokens
from manyheads.masks.facts import join
from manyheads.shapes import check_count, values_are_cheap


class RingCache(Cache):
    """Keep what a window sees, however long the text grows.

    Under ``Causal() & Window(size)`` it gives what a cache of everything gives, in memory and time
    that stay flat. A chunk may be longer than the window, and cross its edge: its queries see the
    keys that each of them needs, and only then are the old ones dropped. Tokens keep their
    positions. Where rows are padded, each row keeps the last tokens of its own.

    With `keep_first` the tokens at positions 0 to ``keep_first - 1`` stay for ever beside the
    window (attention sinks); write ``Causal() & (Window(size) | Global((0, 1, ...)))`` of them. A
    layer's rotary then counts positions in the cache: a query that stands further than the cache
    is long sees the first tokens just before its window, as near as any text of training had them.

    How ours differs from others: the chunk is attended to before anything is overwritten, what is
    dropped goes by positions and not by slots, and a rollback is exact or refused.

    Args:
        size: The window, in tokens, the query's own included.
        keep_first: Tokens at the start that are never dropped.
        undo: Tokens that can be rolled back after others were dropped for them.

    Raises:
        OptionError: If one of them is no such number.

    Source:
        Sliding windows: Jiang et al. 2023, section 2 (arXiv:2310.06825). First tokens: Xiao et al.
        2023, section 3.2 (arXiv:2309.17453).

    Example:
        >>> import torch, manyheads as mh
        >>> layer, cache = mh.MultiHeadAttention(16, 4).eval(), mh.RingCache(4)
        >>> x, mask = torch.randn(1, 12, 16), mh.Causal() & mh.Window(4)
        >>> parts = [layer(part, mask=mask, cache=cache) for part in x.split([7, 3, 1, 1], 1)]
        >>> torch.allclose(torch.cat(parts, 1), layer(x, mask=mask), atol=1e-6)
        True
        >>> cache.positions
        tensor([ 8,  9, 10, 11])
    """

    def __init__(self, size: int, keep_first: int = 0, *, undo: int = 1) -> None:
        self.size = check_count("size", size)
        self.keep_first = check_count("keep_first", keep_first, least=0)
        self.undo = check_count("undo", undo, least=0)
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._tokens: Tokens | None = None
        # How long ago each token came, 1 for the last one: (batch or 1, length). None where the
        # columns that are held are simply the last ones.
        self._ages: Tensor | None = None
        self._can_undo: int | None = None  # None until a token was dropped

    @property
    def tokens(self) -> Tokens | None:
        return self._tokens

    @property
    def can_undo(self) -> int:
        """How many tokens can be rolled back now."""
        return self.length if self._can_undo is None else self._can_undo

    def total(self, length: int) -> int:
        return min(self.length, self.keep_first + self.size - 1) + length

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        tokens = self.follow(k.shape[2], k.device) if tokens is None else tokens
        check_pair(k, v, tokens)
        old, new = self._read(), Cached(k, v, tokens)
        if old is None:
            self._keep(new, new.length)
            return new
        check_match(old.k, k, "k")
        check_match(old.v, v, "v")
        joined = join(old.tokens, tokens)
        if self.keep_first or joined.absent is not None or self._ages is not None:
            return self._append_chosen(old, new)
        assert self._k is not None and self._v is not None
        room = Cached(extend(self._k, old.length, k), extend(self._v, old.length, v), joined)
        answer = room.first(joined.length).last(self.total(new.length))
        self._keep(room, new.length)
        return answer

    def _append_chosen(self, old: Cached, new: Cached) -> Cached:
        """What is shown and held where it is not simply the last tokens."""
        joined = old.then(new)
        ages = self._ages_of(old) + new.length
        ages = torch.cat((ages, _descending(new).expand(ages.shape[0], -1)), dim=1)
        shown, width = joined, self.total(new.length)
        if width < joined.length:
            index = self._chosen(old.tokens, self.size - 1)
            came = torch.arange(old.length, joined.length, device=index.device)
            index = torch.cat((index, came.expand(index.shape[0], -1)), dim=1)
            shown = _present(joined.columns(index))
        self._ages = ages
        self._keep(joined, new.length)
        return shown

    def _keep(self, room: Cached, came: int) -> None:
        """Hold what is needed of ``room``, whose k and v may have spare columns at their end."""
        length, window = room.length, self._window()
        limit = self.keep_first + window
        if length > limit:
            self._can_undo = min(self._spare(), self.can_undo + came)
            if self.keep_first or room.tokens.absent is not None or self._ages is not None:
                index = self._chosen(room.tokens, window)
                ages = self._ages if self._ages is not None else _descending(room)
                self._ages = pick(ages, index.clamp(min=0))
                room = _present(room.columns(index))
            else:
                start = length - limit
                k, v = (_own(x[:, :, start:]) for x in (room.k, room.v))
                room = Cached(k, v, last(room.tokens, limit))
        elif self._can_undo is not None:
            self._can_undo = min(self._spare(), self._can_undo + came)
        self._k, self._v, self._tokens = room

    def _window(self) -> int:
        # One token at least, after which the next one follows.
        return max(self.size - 1 + self.undo, 1)

    def _spare(self) -> int:
        return self._window() - max(self.size - 1, 1)

    def _chosen(self, tokens: Tokens, window: int) -> Tensor:
        """The columns of each row that are kept, in order: int (batch or 1, width); -1 is none."""
        width = min(tokens.length, self.keep_first + window)
        positions = tokens.positions()
        place = torch.arange(tokens.length, device=positions.device)[None]
        first = (positions[None] if positions.ndim == 1 else positions) < self.keep_first
        if tokens.absent is None:
            wanted = first | (place >= tokens.length - window)
        else:
            there = ~tokens.absent
            rank = there.flip(1).cumsum(dim=1).flip(1)  # 1 for the last one that is there
            wanted = there & (first | (rank <= window))
        return torch.where(wanted, place, -1).topk(width, dim=1).values.flip(1)

    def _ages_of(self, held: Cached) -> Tensor:
        return _descending(held) if self._ages is None else self._ages

    def read(self) -> Cached:
        return check_filled(self._read())

    def _read(self) -> Cached | None:
        if self._k is None or self._v is None or self._tokens is None:
            return None
        length = self._tokens.length
        return Cached(self._k[:, :, :length], self._v[:, :, :length], self._tokens)

    def _hold(self, held: Cached) -> None:
        self._k, self._v, self._tokens = held

    def rollback(self, count: int) -> None:
        if self._can_undo is None:
            check_count_held(count, self.length)
            if count == self.length:
                self._k = self._v = self._tokens = self._ages = None
                return
        elif check_count("count", count, least=0) > self._can_undo:
            raise CacheError(
                f"count must be at most {self._can_undo}, since older tokens have left the ring "
                f"for those that came; got count={count}. Roll back less, or make it with "
                f"RingCache({self.size}, undo={count})."
            )
        if not count:
            return
        held = self.read()
        if self._can_undo is not None:
            self._can_undo -= count
        ages = self._ages if self._can_undo is not None else None
        if ages is None or ages.shape[0] == 1:  # The same columns are forgotten in every row.
            last_ones = count if ages is None else int((ages <= count).sum())
            # Copied at the next append: a view of what was forgotten must not be written over.
            self._hold(held.first(held.length - last_ones))
            self._ages = None if ages is None else ages[:, : self.length] - count
            return
        place = torch.arange(held.length, device=ages.device)
        self._ages = ages - count
        self._hold(held.columns(torch.where(ages > count, place, -1)))

    def reorder(self, index: Tensor) -> None:
        held = self.read()
        index = check_rows(index, held.batch)
        if self._ages is not None and self._ages.shape[0] > 1:
            self._ages = self._ages.index_select(0, index.to(self._ages.device))
        self._hold(held.rows(index))

    def merge(self, other: "RingCache") -> None:
        alike = isinstance(other, RingCache)
        if alike and (other.size, other.keep_first) != (self.size, self.keep_first):
            raise CacheError(
                f"rings that are merged must have one size and keep_first, {self.size} and "
                f"{self.keep_first}; got {other.size} and {other.keep_first}. Give every request "
                f"a ring of the same kind."
            )
        mine, theirs = (cache._read() if alike else None for cache in (self, other))
        super().merge(other)
        if theirs is None:
            return
        limits = [x._can_undo for x in (self, other) if x._can_undo is not None]
        self._can_undo = min(limits, default=None)
        if mine is None:
            self._ages = other._ages
        elif self._ages is not None or other._ages is not None:
            self._ages = _beside(self._ages_of(mine), mine, other._ages_of(theirs), theirs)

    def commit(self) -> None:
        held = self._read()
        if held is None:
            return
        window = max(self.size - 1, 1)
        if held.length > self.keep_first + window:
            index = self._chosen(held.tokens, window)
            if self.keep_first or held.tokens.absent is not None or self._ages is not None:
                self._ages = pick(self._ages_of(held), index.clamp(min=0))
                held = _present(held.columns(index))
            else:
                held = held.last(window)
        if self._can_undo is not None or held.length < self.length:
            self._can_undo = 0
        self._hold(Cached(held.k.clone(), held.v.clone(), held.tokens))

    def __getstate__(self) -> dict[str, Any]:
        # Without the spare room, into which a copy and its original would both write.
        k, v = (x if x is None else x[:, :, : self.length] for x in (self._k, self._v))
        return {**super().__getstate__(), "_k": k, "_v": v}

    def memory_bytes(self) -> int:
        held = (x for x in (self._k, self._v) if x is not None)
        return sum(x.untyped_storage().nbytes() for x in held)


def _descending(held: Cached) -> Tensor:
    """(1, length): n, ..., 2, 1."""
    return torch.arange(held.length, 0, -1, device=held.k.device)[None]


def _present(held: Cached) -> Cached:
    """The same, without a fact of absence that says that all are there."""
    absent = held.tokens.absent
    if absent is None or not values_are_cheap(absent) or bool(absent.any()):
        return held
    tokens = held.tokens
    return Cached(held.k, held.v, Tokens(tokens.length, tokens.position, None, tokens.marks,
                                         tokens.device))  # fmt: skip


def _own(view: Tensor) -> Tensor:
    # A short view must not keep a long prompt alive.
    if torch.compiler.is_compiling() or view.untyped_storage().nbytes() <= 2 * view.nbytes:
        return view
    return view.clone()


def _beside(ages: Tensor, held: Cached, others: Tensor, other: Cached) -> Tensor:
    length = max(held.length, other.length)

    def rows(x: Tensor, like: Cached) -> Tensor:
        return torch.nn.functional.pad(x.expand(like.batch, -1), (length - like.length, 0))

    return torch.cat((rows(ages, held), rows(others, other)))
