"""A cache of what is attended to from outside."""

from torch import Tensor

from manyheads.cache.base import Cache
from manyheads.cache.cached import Cached
from manyheads.cache.checks import check_pair, check_rows
from manyheads.errors import CacheError
from manyheads.masks import Tokens


class CrossCache(Cache):
    """Keep the keys and values of a context, which are computed once for all steps.

    The first call of a cross-attention fills it; later calls need no context, and what the first
    mask said of the context (its padding) still holds.

    Example:
        >>> import torch, manyheads as mh
        >>> layer, cache = mh.MultiHeadAttention(16, 4).eval(), mh.CrossCache()
        >>> x, context = torch.randn(1, 2, 16), torch.randn(1, 5, 16)
        >>> first = layer(x[:, :1], context, cache=cache)
        >>> second = layer(x[:, 1:], cache=cache)
        >>> torch.allclose(torch.cat([first, second], 1), layer(x, context), atol=1e-6)
        True
    """

    def __init__(self) -> None:
        self._held: Cached | None = None

    @property
    def wants_keys(self) -> bool:  # type: ignore[override]
        return self._held is None

    @property
    def tokens(self) -> Tokens | None:
        return None if self._held is None else self._held.tokens

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Cached:
        if self._held is not None:
            raise CacheError(
                f"a CrossCache must be filled once; got {k.shape[2]} more tokens. Take a new one "
                f"for another context; text that grows goes into a GrowingCache."
            )
        tokens = self.follow(k.shape[2], k.device) if tokens is None else tokens
        check_pair(k, v, tokens)
        self._held = Cached(k, v, tokens)
        return self._held

    def read(self) -> Cached:
        """All that is held."""
        if self._held is None:
            raise CacheError(
                "a CrossCache must be filled before it is read; got an empty one. Give the first "
                "call its context."
            )
        return self._held

    def _hold(self, held: Cached) -> None:
        self._held = held

    def rollback(self, count: int) -> None:
        raise CacheError(
            f"a CrossCache must keep its context whole; got count={count}. Roll back the cache of "
            f"the text instead."
        )

    def reorder(self, index: Tensor) -> None:
        held = self.read()
        self._held = held.rows(check_rows(index, held.batch))

    def memory_bytes(self) -> int:
        if self._held is None:
            return 0
        return sum(x.numel() * x.element_size() for x in (self._held.k, self._held.v))
