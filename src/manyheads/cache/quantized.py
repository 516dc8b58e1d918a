"""A cache that rounds what is not recent."""

import copy
from typing import Literal

import torch
from torch import Tensor

from manyheads.cache.base import Cache
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
from manyheads.cache.codes import Codes
from manyheads.cache.facts import beside
from manyheads.cache.rounded import Rounded
from manyheads.errors import CacheError, OptionError
from manyheads.masks import Tokens
from manyheads.masks.facts import join
from manyheads.shapes import check_count


class QuantizedCache(Cache):
    """Keep old keys and values in 8 or 4 bits, and recent ones as they are.

    Keys are rounded by channel, in groups of 64 tokens, since a few channels of keys are far
    larger than the others; values are rounded by token. A channel or a token that is constant
    costs no accuracy, and an outlier that of its own group alone. The last `recent` tokens at
    least, and 63 more at most, are exact; so is everything a chunk says to itself.

    Each number is off by half a step at most: half its group's range and a 256th of the group's
    middle, over 255 with 8 bits and over 15 with 4 bits, up to 1.2 % more. `error` tells the
    greatest that is held; the dtype of the cache adds its own rounding.

    How ours differs from others: the step is widened until no number is cut off; a rollback into
    rounded tokens rounds nothing twice; absent tokens do not widen any range.

    Args:
        bits: 8 or 4.
        recent: Tokens that are never rounded before they are so old.
        group: Tokens whose keys are rounded together.

    Raises:
        OptionError: If `bits` is neither, or a number counts nothing.

    Source:
        Liu et al. 2024, sections 3 and 4 (KIVI, arXiv:2402.02750).

    Example:
        >>> import torch, manyheads as mh
        >>> layer, cache = mh.MultiHeadAttention(64, 4).eval(), mh.QuantizedCache(bits=8)
        >>> x = torch.randn(1, 300, 64)
        >>> with torch.no_grad():
        ...     whole = layer(x, mask=mh.Causal())
        ...     parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split(100, 1)]
        >>> torch.allclose(torch.cat(parts, 1), whole, atol=0.01), cache.length
        (True, 300)
    """

    parts = (Tokens, Cached, Rounded, Codes)

    def __init__(self, bits: Literal[8, 4] = 8, *, recent: int = 32, group: int = 64) -> None:
        if bits not in (8, 4):
            raise OptionError(
                f"bits must be 8 or 4; got bits={bits!r}. Take 8 where the text must stay the "
                f"same, 4 where memory is what counts."
            )
        self.bits: Literal[8, 4] = 8 if bits == 8 else 4
        self.recent = check_count("recent", recent, least=0)
        self.group = check_count("group", group)
        self._old: Rounded | None = None
        self._new: Cached | None = None  # exact; its tokens are those of the whole cache
        self._tokens: Tokens | None = None

    @property
    def tokens(self) -> Tokens | None:
        return self._tokens

    @property
    def error(self) -> tuple[float, float]:
        """How far any key, and any value, that is held may be off: half the widest step."""
        return (0.0, 0.0) if self._old is None else self._old.error()

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        tokens = self.follow(k.shape[2], k.device) if tokens is None else tokens
        check_pair(k, v, tokens)
        check_no_gradient(self, k, v)
        new = Cached(k.detach(), v.detach(), tokens)
        if self._new is not None and self._tokens is not None:
            check_match(self._new.k, k, "k")
            check_match(self._new.v, v, "v")
            joined = join(self._tokens, tokens)
            new = self._new.then(new)
        else:
            joined = tokens
        answer = self._whole(new, joined)
        self._new, self._tokens = new, joined
        self._round((new.length - self.recent) // self.group * self.group)
        return answer

    def _whole(self, new: Cached, tokens: Tokens) -> Cached:
        if self._old is None:
            return Cached(new.k, new.v, tokens)
        k, v = self._old.read(new.k.dtype)
        if tokens.absent is not None:
            gone = tokens.absent[:, None, : k.shape[2], None]
            k, v = k.masked_fill(gone, 0.0), v.masked_fill(gone, 0.0)
        return Cached(torch.cat((k, new.k), dim=2), torch.cat((v, new.v), dim=2), tokens)

    def _round(self, count: int) -> None:
        """Round the oldest of the exact tokens."""
        assert self._new is not None
        if count <= 0:
            return
        old = Rounded.made(self._new.first(count), self.bits, self.group)
        self._old = old if self._old is None else self._old.then(old)
        rest = self._new.last(self._new.length - count)
        # A copy, or the view would keep alive what was rounded.
        self._new = Cached(rest.k.clone(), rest.v.clone(), rest.tokens)

    def read(self) -> Cached:
        new, tokens = self._new, self._tokens
        return check_filled(None if new is None or tokens is None else self._whole(new, tokens))

    def rollback(self, count: int) -> None:
        check_count_held(count, self.length)
        if count == self.length:
            self._old = self._new = self._tokens = None
        elif count and self._new is not None and self._tokens is not None:
            exact = min(count, self._new.length)
            self._tokens = self._tokens.first(self.length - count)
            self._new = self._new.first(self._new.length - exact)
            if self._old is not None and count > exact:
                self._old = self._old.first(self._old.length - (count - exact))

    def reorder(self, index: Tensor) -> None:
        check_filled(self._new)
        assert self._new is not None and self._tokens is not None
        index = check_rows(index, self._new.batch).to(self._new.k.device)
        self._new, self._tokens = self._new.rows(index), self._tokens.rows(index)
        self._old = None if self._old is None else self._old.rows(index)

    def _hold(self, held: Cached) -> None:
        self._old, self._new, self._tokens = None, held, held.tokens

    def merge(self, other: "QuantizedCache") -> None:
        check_kind(self, other)
        if (other.bits, other.group) != (self.bits, self.group):
            raise CacheError(
                f"caches that are merged must round alike, bits={self.bits} and group="
                f"{self.group}; got bits={other.bits}, group={other.group}. Make both so."
            )
        if other._new is None or other._tokens is None:
            return
        theirs = other.split(torch.arange(other._new.batch))
        if self._new is None or self._tokens is None:
            self._old, self._new, self._tokens = theirs._old, theirs._new, theirs._tokens
            return
        check_match(self._new.k, other._new.k, "k", rows=False)
        check_match(self._new.v, other._new.v, "v", rows=False)
        tokens = beside(self._tokens, self._new.batch, other._tokens, other._new.batch)
        mine = copy.copy(self)
        # The exact tokens of both end together, and rounded ones are not rounded again.
        exact = [x._new.length for x in (mine, theirs) if x._old is not None and x._new is not None]
        if exact:
            for cache in (mine, theirs):
                assert cache._new is not None
                cache._round(cache._new.length - min(exact))
        assert mine._new is not None and theirs._new is not None
        old = _beside(mine, theirs)
        self._old, self._new, self._tokens = old, mine._new.beside(theirs._new), tokens

    def commit(self) -> None:
        """Round now what would be rounded a little later."""
        if self._new is not None:
            self._round(max(self._new.length - self.recent, 0))

    def memory_bytes(self) -> int:
        exact = 0
        if self._new is not None:
            exact = sum(x.numel() * x.element_size() for x in (self._new.k, self._new.v))
        return exact + (0 if self._old is None else self._old.memory_bytes())


def _beside(mine: QuantizedCache, theirs: QuantizedCache) -> Rounded | None:
    assert mine._new is not None and theirs._new is not None
    if mine._old is None and theirs._old is None:
        return None
    first, second = (
        Rounded.made(cache._new.first(0), cache.bits, cache.group)
        if cache._old is None and cache._new is not None
        else cache._old
        for cache in (mine, theirs)
    )
    assert first is not None and second is not None
    return first.beside(second)
