"""What every cache promises."""

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.cache import files
from manyheads.cache.cached import Cached
from manyheads.cache.checks import check_kind, check_match
from manyheads.errors import CacheError
from manyheads.masks import Tokens

# Not Self, which beartype knows only in classes that it decorates whole.
Kind = TypeVar("Kind", bound="Cache")


class Cache(ABC):
    """Keys and values of tokens that were seen before, so that they are computed once.

    With a cache, a mask describes the new tokens only: the cache keeps what was said of the old
    ones (positions, padding, documents) beside their keys. Any split of a sequence into chunks
    gives what one pass over the whole would give.
    """

    wants_keys = True
    """Whether a layer must still project keys and values for this cache."""

    room: int | None = None
    """How many tokens of a row there is room for; None if there is no limit."""

    parts: ClassVar[tuple[type, ...]] = (Tokens, Cached)
    """Classes of the objects that a cache of this kind keeps, and that a file may hold."""

    _layer: weakref.ref[object] | None = None

    @property
    @abstractmethod
    def tokens(self) -> Tokens | None:
        """What is known of the tokens that are held; None before the first."""

    @abstractmethod
    def append(
        self,
        k: Float[Tensor, "batch num_kv_heads length head_dim"],
        v: Float[Tensor, "batch num_kv_heads length value_dim"],
        tokens: Tokens | None = None,
    ) -> Cached:
        """Keep new keys and values, and return all that are held.

        Args:
            k: Keys of the new tokens.
            v: Values of the new tokens.
            tokens: What is known of the new tokens; None lets them follow the old ones.

        Raises:
            CacheError: If batch, heads, widths, dtype or device differ from what is held; the
                cache is then as it was.
        """

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Forget the last ``count`` tokens.

        Raises:
            CacheError: If there are fewer; the cache is then as it was.
        """

    @abstractmethod
    def reorder(self, index: Int[Tensor, " batch"]) -> None:
        """Let row i continue what row ``index[i]`` was: beams that survive, or a smaller batch.

        Raises:
            CacheError: If an index names no row; the cache is then as it was.
        """

    @abstractmethod
    def read(self) -> Cached:
        """All that is held.

        Raises:
            CacheError: If nothing is.
        """

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes that keys and values take, spare room included."""

    @abstractmethod
    def _hold(self, held: Cached) -> None:
        """Hold this and nothing else."""

    def commit(self) -> None:
        """Give back what only spare room, or a rollback that nobody will ask for, needs."""
        return

    def split(self: Kind, index: Int[Tensor, " rows"]) -> Kind:
        """A new cache that goes on with the rows in ``index``; this one keeps all of its own.

        Rows leave a batch so: ``paused = cache.split(some)``, then ``cache.reorder(the_others)``.

        Raises:
            CacheError: If an index names no row.
        """
        part = copy.copy(self)
        part.reorder(index)
        return part

    def merge(self: Kind, other: Kind) -> None:
        """Take in the rows of another cache, behind one's own; the other is left as it is.

        Rows that are shorter are padded on the left with absent tokens.

        Raises:
            CacheError: If kind, heads, widths, dtype or device differ, or one of the two does not
                know a fact that the other knows; the cache is then as it was.
        """
        check_kind(self, other)
        if other.tokens is None:
            return
        theirs = other.read()
        if self.tokens is None:
            # A copy: what the other writes over later is not ours.
            self._hold(theirs.rows(torch.arange(theirs.batch)))
            return
        mine = self.read()
        check_match(mine.k, theirs.k, "k", rows=False)
        check_match(mine.v, theirs.v, "v", rows=False)
        self._hold(mine.beside(theirs))

    def save(self, path: str | Path) -> None:
        """Write the cache into a safetensors file, which is there as a whole or not at all."""
        part = self._tight()
        state = {name: value for name, value in vars(part).items() if name != "_layer"}
        files.write(Path(path), type(self).__name__, state)

    @classmethod
    def load(cls: type[Kind], path: str | Path, device: torch.device | str = "cpu") -> Kind:
        """The cache that was saved; reading it runs no code of the file.

        Raises:
            CacheError: If there is no such file, or it holds something else.
        """
        cache = object.__new__(cls)
        vars(cache).update(files.read(Path(path), cls.__name__, cls.parts, device))
        return cache

    def _tight(self: Kind) -> Kind:
        """A copy without spare room, which may share what it holds."""
        return copy.copy(self)

    def total(self, length: int) -> int:
        """How many keys the next ``length`` tokens will be shown, their own included."""
        return self.length + length

    @property
    def length(self) -> int:
        """How many tokens of each row are held."""
        return 0 if self.tokens is None else self.tokens.length

    @property
    def positions(self) -> Int[Tensor, " length"] | Int[Tensor, "batch length"]:
        """Where the tokens that are held stand; below 0 where there is no token."""
        if self.tokens is None:
            return torch.zeros(0, dtype=torch.long)
        positions, absent = self.tokens.positions(), self.tokens.absent
        return positions if absent is None else positions.masked_fill(absent, -1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.length} tokens, {self.memory_bytes():,} bytes)"

    @contextmanager
    def serving(self, layer: object) -> Iterator[None]:
        """Serve one call of a layer; if it fails, the cache is as it was before.

        A cache that writes over what it holds must put that back too.

        Raises:
            CacheError: If keys of another layer are held: the two would mix without a word.
        """
        if torch.compiler.is_compiling():
            yield
            return
        before = dict(vars(self))
        self._claim(layer)
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _claim(self, layer: object) -> None:
        owner = None if self._layer is None else self._layer()
        if owner is layer:
            return
        if owner is not None and self.length:
            raise CacheError(
                f"a cache must serve one layer; got one with {self.length} tokens of another "
                f"layer. Take a cache for each: [GrowingCache() for _ in layers]."
            )
        self._layer = weakref.ref(layer)

    def __getstate__(self) -> dict[str, Any]:
        # A copy serves whoever takes it first; and a weak reference cannot be pickled.
        return {**vars(self), "_layer": None}

    def follow(self, length: int, device: torch.device) -> Tokens:
        """Where the next tokens stand if nobody says so: after the last token of each row."""
        if self.tokens is None:
            return Tokens(length, 0, device=device)
        return self.tokens.follow(length)
