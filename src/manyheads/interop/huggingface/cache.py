"""Our caches in models of Hugging Face; importing this file imports transformers."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils as theirs

from manyheads.cache import Cache, CrossCache, RingCache
from manyheads.errors import CacheError


class HuggingFaceCache(theirs.Cache):
    """Give a model of Hugging Face caches of ours, one for each layer.

    A `RingCache` serves a layer with a sliding window of its size; the others serve any.

    Args:
        caches: Empty ones.

    Raises:
        CacheError: If one of them holds tokens already, or cannot serve such a model.

    Example:
        >>> import torch, manyheads as mh
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from manyheads.interop.huggingface.cache import HuggingFaceCache
        >>> numbers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        >>> config = LlamaConfig(vocab_size=20, num_attention_heads=4, **numbers)
        >>> model = LlamaForCausalLM(config)
        >>> cache = HuggingFaceCache([mh.PagedCache() for _ in range(2)])
        >>> options = {"min_new_tokens": 4, "max_new_tokens": 4, "do_sample": False}
        >>> tokens = torch.tensor([[5, 6, 7]])
        >>> text = model.generate(tokens, cache=cache, **options)
        >>> torch.equal(text, model.generate(tokens, **options)), cache.get_seq_length()
        (True, 6)
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        for cache in caches:
            _check(cache)
        super().__init__(layers=[HuggingFaceLayer(cache) for cache in caches])


class HuggingFaceLayer(theirs.CacheLayerMixin):
    """One layer of a `HuggingFaceCache`.

    Args:
        cache: An empty one.
    """

    is_compileable = False
    supports_early_init = False

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache, self._empty = cache, copy.copy(cache)
        # A ring asks for a mask of its window, and cannot take back any number of tokens.
        self.is_sliding = isinstance(cache, RingCache)
        self.is_croppable = not self.is_sliding

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: our caches begin with their first tokens."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep new keys and values; all that may be seen."""
        held = self.cache.append(key_states, value_states)
        self.is_initialized = True
        return held.k, held.v

    def get_seq_length(self) -> int:
        """How many tokens have come, those that a ring has dropped included."""
        if self.cache.tokens is None:
            return 0
        return int(self.cache.follow(1, torch.device("cpu")).positions()[0])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys the next tokens will be shown, and where the first of them stands."""
        shown = self.cache.total(query_length)
        return shown, self.get_seq_length() + query_length - shown

    def get_max_length(self) -> int:
        """How many tokens there is room for; -1 if there is no limit."""
        if isinstance(self.cache, RingCache):
            return self.cache.size
        return -1 if self.cache.room is None else self.cache.room

    def reset(self) -> None:
        """Begin anew."""
        self.cache, self.is_initialized = copy.copy(self._empty), False

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; their number is told below 0, as transformers does."""
        if tokens_to_remove > 0:
            raise CacheError(
                f"tokens_to_remove must be 0 or less; got tokens_to_remove={tokens_to_remove}. "
                f"To forget the last three tokens, write crop(-3)."
            )
        if self.cache.length:
            self.cache.rollback(-tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i continue what row ``beam_idx[i]`` was."""
        if self.cache.length:
            self.cache.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Have each row several times, side by side."""
        if self.cache.length:
            rows = torch.arange(self.cache.read().batch)
            self.cache.reorder(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, named by their numbers or by True."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        self.reorder_cache(indices)


def _check(cache: Cache) -> None:
    if cache.length:
        raise CacheError(
            f"a cache must be empty at first; got one of {cache.length} tokens. Take a new one."
        )
    if isinstance(cache, CrossCache) or (isinstance(cache, RingCache) and cache.keep_first):
        kind = type(cache).__name__
        raise CacheError(
            f"a cache must hold tokens that stand side by side; got {kind} that does not. Take "
            f"a GrowingCache, or a RingCache without keep_first."
        )
