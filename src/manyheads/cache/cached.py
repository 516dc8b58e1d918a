"""What a cache answers: keys, values and the facts of their tokens, as one thing."""

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.cache.facts import columns, last, pad_left, stack
from manyheads.masks import Tokens
from manyheads.masks.facts import join


class Cached(NamedTuple):
    """All keys and values that may be seen, and what is known of them.

    Args:
        k: (batch, num_kv_heads, length, head_dim).
        v: (batch, num_kv_heads, length, value_dim).
        tokens: Positions, absence and marks of the keys.
    """

    k: Tensor
    v: Tensor
    tokens: Tokens

    @property
    def batch(self) -> int:
        """How many rows there are."""
        return self.k.shape[0]

    @property
    def length(self) -> int:
        """How many tokens each row has."""
        return self.tokens.length

    def first(self, length: int) -> "Cached":
        """The first ``length`` tokens, as views."""
        return Cached(self.k[:, :, :length], self.v[:, :, :length], self.tokens.first(length))

    def last(self, length: int) -> "Cached":
        """The last ``length`` tokens, as views."""
        start = self.length - length
        return Cached(self.k[:, :, start:], self.v[:, :, start:], last(self.tokens, length))

    def rows(self, index: Tensor) -> "Cached":
        """A copy of the rows in ``index``, int (batch,)."""
        index = index.to(self.k.device)
        k, v = self.k.index_select(0, index), self.v.index_select(0, index)
        return Cached(k, v, self.tokens.rows(index))

    def columns(self, index: Tensor) -> "Cached":
        """A copy of the tokens in ``index``, int (batch or 1, length); below 0 is no token."""
        k, v = _columns(self.k, index), _columns(self.v, index)
        return Cached(k, v, columns(self.tokens, index))

    def then(self, new: "Cached") -> "Cached":
        """These tokens and those that follow them, as a copy.

        Raises:
            MaskError: If one of the two lacks a fact for which no answer can be assumed.
        """
        tokens = join(self.tokens, new.tokens)
        return Cached(torch.cat((self.k, new.k), 2), torch.cat((self.v, new.v), 2), tokens)

    def beside(self, other: "Cached") -> "Cached":
        """These rows and those of another, as a copy; the shorter are padded on the left.

        Raises:
            CacheError: If one of the two lacks a fact for which no answer can be assumed.
        """
        length = max(self.length, other.length)
        mine, theirs = self.padded(length), other.padded(length)
        tokens = stack(mine.tokens, mine.batch, theirs.tokens, theirs.batch)
        return Cached(torch.cat((mine.k, theirs.k)), torch.cat((mine.v, theirs.v)), tokens)

    def padded(self, length: int) -> "Cached":
        """This, with absent tokens on the left up to a length."""
        missing = length - self.length
        if not missing:
            return self
        k, v = (torch.nn.functional.pad(x, (0, 0, missing, 0)) for x in (self.k, self.v))
        return Cached(k, v, pad_left(self.tokens, missing))


def _columns(x: Tensor, index: Tensor) -> Tensor:
    gone = (index < 0)[:, None, :, None]
    index = index.clamp(min=0)
    if index.shape[0] == 1:
        picked = x.index_select(2, index[0])
    else:
        shape = (*x.shape[:2], index.shape[1], x.shape[3])
        picked = x.gather(2, index[:, None, :, None].expand(shape))
    # Absent tokens hold zeros, so that nobody need look for a NaN in them.
    return picked.masked_fill(gone, 0.0)
