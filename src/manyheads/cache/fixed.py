"""A cache of a length that was fixed before, for compiled steps."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
from manyheads.errors import CacheError
from manyheads.masks import Tokens
from manyheads.masks.facts import mark_of
from manyheads.shapes import check_count, values_are_cheap


class FixedCache(Cache):
    """Keep every key and value in room that was made once.

    Where a step is compiled, keys, values and their facts have the same shapes in every step, and
    how many tokens are held is a number in a tensor: nothing is compiled anew as the text grows.
    Slots without a token are absent ones, which no mask need know of. Elsewhere, where looking at
    numbers is cheap, a call is shown the filled part alone.

    What it answers are views of its room: they hold until the next rollback or reorder. Where
    gradients are recorded, the room is written anew by each call, and gradients flow.

    Args:
        length: Room, in tokens of each row.

    Raises:
        OptionError: If `length` is no number of tokens.

    Example:
        >>> import torch, manyheads as mh
        >>> layer, cache = mh.MultiHeadAttention(16, 4).eval(), mh.FixedCache(8)
        >>> x = torch.randn(1, 6, 16)
        >>> whole = layer(x, mask=mh.Causal())
        >>> parts = [layer(x[:, i : i + 2], mask=mh.Causal(), cache=cache) for i in (0, 2, 4)]
        >>> torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-6), cache.length
        (True, 6)
    """

    room: int

    def __init__(self, length: int) -> None:
        self.room = check_count("length", length)
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._count: Tensor | None = None  # (), how many slots are filled
        self._position: Tensor | None = None  # (batch, room), -1 where there is no token
        self._marks: dict[str, Tensor] = {}  # (batch, room) each
        self._empty = True  # so that a compiler knows the first call from the others
        self._recorded = False  # whether a graph of gradients may hold the room
        self._told: tuple[Tensor, Tensor, Tokens] | None = None

    def reserve(self, k: Tensor, v: Tensor) -> None:
        """Make the room before the first token, so that a first compiled step finds it.

        Args:
            k: Keys of any length, which tell batch, heads, width, dtype and device.
            v: Values, likewise.

        Raises:
            CacheError: If tokens are held already.
        """
        if not self._empty:
            raise CacheError(
                f"room must be made before the first token; got a cache of {self.length} tokens. "
                f"Take a new one."
            )
        # Ordinary tensors even under inference_mode: the cache may be used outside of it later.
        with torch.inference_mode(False), torch.no_grad():
            self._k, self._v = (
                x.new_zeros(x.shape[0], x.shape[1], self.room, x.shape[3]) for x in (k, v)
            )
            self._count = torch.zeros((), dtype=torch.long, device=k.device)
            shape = (k.shape[0], self.room)
            self._position = torch.full(shape, -1, dtype=torch.long, device=k.device)
        self._marks, self._recorded = {}, False

    @property
    def tokens(self) -> Tokens | None:
        if self._empty or self._position is None or self._count is None:
            return None
        if not values_are_cheap(self._count):
            absent = self._position < 0
            return Tokens(self.room, self._position, absent, self._marks, self._position.device)
        return self._tokens_told()

    def _tokens_told(self) -> Tokens:
        # Asked several times a step; both tensors are others once anything changed.
        assert self._position is not None and self._count is not None
        told = self._told
        if told is None or told[0] is not self._count or told[1] is not self._position:
            tokens = _filled(self._position[:, : self.length], self._marks)
            self._told = told = (self._count, self._position, tokens)
        return told[2]

    @property
    def length(self) -> int:
        return 0 if self._count is None else int(self._count)

    def total(self, length: int) -> int:
        if self._empty or self._count is None:
            return length
        return self.length + length if values_are_cheap(self._count) else self.room

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        tokens = self.follow(k.shape[2], k.device) if tokens is None else tokens
        check_pair(k, v, tokens)
        first = self._empty
        self._check_room(tokens.length)
        if first and not (_fits(self._k, k) and _fits(self._v, v)):
            self.reserve(k, v)
        assert self._k is not None and self._v is not None
        check_match(self._k, k, "k")
        check_match(self._v, v, "v")
        self._write(k, v, tokens, {} if first else self._marks_with(tokens))
        # A prompt is shown as it came, for nothing went before it.
        return Cached(k, v, tokens) if first else self.read()

    def _check_room(self, length: int) -> None:
        held = self.length if self._count is not None and values_are_cheap(self._count) else 0
        if held + length > self.room:
            raise CacheError(
                f"a FixedCache must hold all tokens of a text; got {held} and {length} more in "
                f"room for {self.room}. Make it longer, FixedCache({held + length}), or take a "
                f"GrowingCache, or a RingCache if the mask has a window."
            )

    def _marks_with(self, tokens: Tokens) -> dict[str, Tensor]:
        """The marks of the tokens that are held, of all names that new ones bring."""
        held = self.tokens
        assert held is not None and self._position is not None
        marks = dict(self._marks)
        for name in tokens.marks:
            if name not in marks:
                unsaid = mark_of(name, held, tokens)  # refused where it means something
                marks[name] = self._slots(unsaid.dtype)
        for name in marks:
            mark_of(name, tokens, Tokens(self.room, 0, marks=marks))
        return marks

    def _slots(self, dtype: torch.dtype) -> Tensor:
        assert self._position is not None
        with torch.inference_mode(False):
            return torch.zeros(self._position.shape, dtype=dtype, device=self._position.device)

    def _write(self, k: Tensor, v: Tensor, tokens: Tokens, marks: dict[str, Tensor]) -> None:
        assert self._k is not None and self._v is not None
        assert self._position is not None and self._count is not None
        length, held = tokens.length, self._count
        at: slice | Tensor = held + torch.arange(length, device=held.device)
        if values_are_cheap(held):
            at = slice(int(held), int(held) + length)
        position = tokens.positions().to(held.device)
        if tokens.absent is not None:
            position = position.masked_fill(tokens.absent, -1)
        if not marks:
            marks = {name: self._slots(mark.dtype) for name, mark in tokens.marks.items()}
        for name, room in marks.items():
            _put(room, at, tokens.marks.get(name, torch.zeros((), dtype=room.dtype)))
        self._put_pair(k, v, at)
        _put(self._position, at, position)
        self._marks, self._count, self._empty = marks, held + length, False

    def _put_pair(self, k: Tensor, v: Tensor, at: slice | Tensor) -> None:
        assert self._k is not None and self._v is not None
        if torch.is_grad_enabled() or self._recorded:
            # A graph may hold the room: it is left to it.
            self._recorded = torch.is_grad_enabled()
            with torch.inference_mode(False) if not self._recorded else nullcontext():
                self._k, self._v = self._k.clone(), self._v.clone()
            if not self._recorded:
                self._k, self._v = self._k.detach(), self._v.detach()
        if not torch.is_grad_enabled():
            k, v = k.detach(), v.detach()
        _put(self._k, at, k, axis=2)
        _put(self._v, at, v, axis=2)

    def read(self) -> Cached:
        tokens = self.tokens
        held = None
        if tokens is not None and self._k is not None and self._v is not None:
            held = Cached(self._k[:, :, : tokens.length], self._v[:, :, : tokens.length], tokens)
        return check_filled(held)

    def _hold(self, held: Cached) -> None:
        if held.length > self.room:
            raise CacheError(
                f"rows that are merged must fit the room for {self.room} tokens; got "
                f"{held.length}. Make both caches longer."
            )
        self._k = self._v = self._count = self._position = None
        self._empty = True
        self.append(*held)

    def rollback(self, count: int) -> None:
        check_count_held(count, self.length)
        self._empty = count == self.length
        if count and self._count is not None:
            self._count = self._count - count
            self._erase()

    def _erase(self) -> None:
        """Empty the slots behind the last token, so that nothing foreign is left in them."""
        if self._k is None or self._v is None or self._position is None or self._count is None:
            return
        with torch.inference_mode(False), torch.set_grad_enabled(torch.is_grad_enabled()):
            gone = torch.arange(self.room, device=self._count.device) >= self._count
            self._position = self._position.masked_fill(gone, -1)
            self._k = self._k.masked_fill(gone[:, None], 0.0)
            self._v = self._v.masked_fill(gone[:, None], 0.0)

    @contextmanager
    def serving(self, layer: object) -> Iterator[None]:
        if torch.compiler.is_compiling():
            yield
            return
        try:
            with super().serving(layer):
                yield
        except BaseException:
            self._erase()  # what was written before the call failed
            raise

    def reorder(self, index: Tensor) -> None:
        index = check_rows(index, self.read().batch)
        assert self._k is not None and self._v is not None and self._position is not None
        index = index.to(self._k.device)
        with torch.inference_mode(False):
            self._k, self._v = self._k.index_select(0, index), self._v.index_select(0, index)
            self._position = self._position.index_select(0, index)
            self._marks = {name: x.index_select(0, index) for name, x in self._marks.items()}

    def __getstate__(self) -> dict[str, Any]:
        # A copy has room of its own: both write in place.
        state = {**super().__getstate__(), "_told": None}
        rooms = ("_k", "_v", "_position")
        with torch.inference_mode(False):
            state |= {name: state[name].clone() for name in rooms if state[name] is not None}
            state["_marks"] = {name: mark.clone() for name, mark in self._marks.items()}
        return state

    def memory_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self._k, self._v) if x is not None)


def _filled(position: Tensor, marks: dict[str, Tensor]) -> Tokens:
    """The facts of filled slots: an int for a run, and no absence where all are there."""
    length, device = position.shape[1], position.device
    marks = {name: mark[:, :length] for name, mark in marks.items()}
    first = int(position[0, 0]) if position.numel() else 0
    run = torch.arange(first, first + length, device=device)
    if first >= 0 and torch.equal(position, run.expand(position.shape)):
        return Tokens(length, first, None, marks, device)
    absent = position < 0
    return Tokens(length, position, absent if absent.any() else None, marks, device)


def _fits(room: Tensor | None, new: Tensor) -> bool:
    if room is None:
        return False
    same = (new.shape[0], new.shape[1], new.shape[3], new.dtype, new.device)
    return same == (room.shape[0], room.shape[1], room.shape[3], room.dtype, room.device)


def _put(room: Tensor, at: slice | Tensor, new: Tensor, axis: int = 1) -> None:
    if isinstance(at, slice):
        room.narrow(axis, at.start, at.stop - at.start).copy_(new)
        return
    shape = [*room.shape]
    shape[axis] = len(at)
    room.index_copy_(axis, at, new.to(room.device).expand(shape))
