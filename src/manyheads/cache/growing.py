"""A cache that grows with the text."""

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
from manyheads.masks import Tokens
from manyheads.masks.facts import join


class GrowingCache(Cache):
    """Keep every key and value.

    Room is made ahead of need, half as much again each time, so that a step copies one token and
    not the whole past. Where gradients are recorded nothing is written in place, and gradients flow
    through every chunk.

    Example:
        >>> import torch, manyheads as mh
        >>> layer, cache = mh.MultiHeadAttention(16, 4).eval(), mh.GrowingCache()
        >>> x = torch.randn(1, 6, 16)
        >>> whole = layer(x, mask=mh.Causal())
        >>> parts = [layer(x[:, i : i + 2], mask=mh.Causal(), cache=cache) for i in (0, 2, 4)]
        >>> torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-6), cache.length
        (True, 6)
    """

    def __init__(self) -> None:
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._tokens: Tokens | None = None

    @property
    def tokens(self) -> Tokens | None:
        return self._tokens

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        tokens = self.follow(k.shape[2], k.device) if tokens is None else tokens
        check_pair(k, v, tokens)
        if self._k is None or self._v is None or self._tokens is None:
            self._k, self._v, self._tokens = k, v, tokens
            return Cached(k, v, tokens)
        check_match(self._k, k, "k")
        check_match(self._v, v, "v")
        joined, held = join(self._tokens, tokens), self._tokens.length
        self._k, self._v = extend(self._k, held, k), extend(self._v, held, v)
        self._tokens = joined
        return Cached(self._k[:, :, : joined.length], self._v[:, :, : joined.length], joined)

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
        check_count_held(count, self.length)
        held = self._read()
        if count == self.length:
            self._k = self._v = self._tokens = None
        elif count and held is not None:
            # Copied at the next append: a view of what was forgotten must not be written over.
            self._hold(held.first(held.length - count))

    def reorder(self, index: Tensor) -> None:
        held = self.read()
        self._hold(held.rows(check_rows(index, held.batch)))

    def commit(self) -> None:
        held = self._read()
        if held is not None:
            self._hold(Cached(held.k.clone(), held.v.clone(), held.tokens))

    def __getstate__(self) -> dict[str, Any]:
        # Without the spare room, into which a copy and its original would both write.
        k, v = (x if x is None else x[:, :, : self.length] for x in (self._k, self._v))
        return {**super().__getstate__(), "_k": k, "_v": v}

    def memory_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self._k, self._v) if x is not None)


def extend(held: Tensor, length: int, new: Tensor) -> Tensor:
    """``held[:, :, :length]`` followed by ``new``, and perhaps by spare room."""
    total = length + new.shape[2]
    if total == length:
        return held
    if torch.is_grad_enabled():
        # Also where only queries need a gradient: their graph holds views of these keys.
        return torch.cat((held[:, :, :length], new), dim=2)
    if held.requires_grad or held.shape[2] < total:
        # An ordinary tensor even under inference_mode: the cache may be used outside of it later.
        with torch.inference_mode(False):
            room = held.new_empty(*held.shape[:2], total + total // 2, held.shape[3])
        room[:, :, :length] = held[:, :, :length].detach()
        held = room
    held.narrow(2, length, new.shape[2]).copy_(new)
    return held
