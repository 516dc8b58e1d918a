"""What every cache promises."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import CacheError
from manyheads.masks import Tokens
from manyheads.shapes import values_are_cheap


class Cached(NamedTuple):
    """What a cache answers: all keys and values that may be seen, and what is known of them.

    Args:
        k: (batch, num_kv_heads, length, head_dim).
        v: (batch, num_kv_heads, length, value_dim).
        tokens: Positions, absence and marks of the keys.
    """

    k: Tensor
    v: Tensor
    tokens: Tokens


class Cache(ABC):
    """Keys and values of tokens that were seen before, so that they are computed once.

    With a cache, a mask describes the new tokens only: the cache keeps what was said of the old
    ones (positions, padding, documents) beside their keys. Any split of a sequence into chunks
    gives what one pass over the whole would give.
    """

    wants_keys = True
    """Whether a layer must still project keys and values for this cache."""

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
    def memory_bytes(self) -> int:
        """Bytes that keys and values take, spare room included."""

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


def check_match(held: Tensor, new: Tensor, name: str) -> None:
    """Refuse keys or values that cannot follow those that are held."""
    if new.ndim != 4:
        raise CacheError(
            f"{name} must be (batch, num_kv_heads, length, head_dim); got shape "
            f"{tuple(new.shape)}. Split the heads first."
        )
    same = (held.shape[0], held.shape[1], held.shape[3])
    if (new.shape[0], new.shape[1], new.shape[3]) != same:
        raise CacheError(
            f"{name} must have the cache's batch, heads and width {same}; got "
            f"{(new.shape[0], new.shape[1], new.shape[3])}. Take a new cache for another batch, "
            f"or reorder this one."
        )
    if new.dtype != held.dtype or new.device != held.device:
        raise CacheError(
            f"{name} must have the cache's dtype and device ({held.dtype}, {held.device}); got "
            f"({new.dtype}, {new.device}). Take a new cache, or convert the model first."
        )


def check_pair(k: Tensor, v: Tensor, tokens: Tokens) -> None:
    """Refuse keys, values and facts that do not speak of the same tokens."""
    if not k.ndim == v.ndim == 4 or k.shape[:3] != v.shape[:3] or k.shape[2] != tokens.length:
        raise CacheError(
            f"k and v must be (batch, num_kv_heads, length, width) of the same {tokens.length} "
            f"tokens; got k={tuple(k.shape)}, v={tuple(v.shape)}. Append them together."
        )


def check_rows(index: Tensor, batch: int) -> Tensor:
    """Return ``index`` if it names rows of a batch."""
    integers = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if not integers or index.ndim != 1:
        got = f"{index.dtype} of shape {tuple(index.shape)}" if isinstance(index, Tensor) else index
        raise CacheError(
            f"index must be integers (batch,); got {got}. Name for each row the row whose past it "
            f"takes, counted over the whole batch (sample * beams + beam)."
        )
    if not values_are_cheap(index):
        return index
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
        raise CacheError(
            f"index must name rows 0 to {batch - 1}; got index={index.tolist()}. Count over the "
            f"whole batch: sample * beams + beam."
        )
    return index
