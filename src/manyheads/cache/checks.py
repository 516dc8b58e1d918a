"""What a cache refuses, whatever its kind."""

import torch
from torch import Tensor

from manyheads.cache.cached import Cached
from manyheads.errors import CacheError
from manyheads.masks import Tokens
from manyheads.shapes import check_count, values_are_cheap


def check_pair(k: Tensor, v: Tensor, tokens: Tokens) -> None:
    """Refuse keys, values and facts that do not speak of the same tokens."""
    if not k.ndim == v.ndim == 4 or k.shape[:3] != v.shape[:3] or k.shape[2] != tokens.length:
        raise CacheError(
            f"k and v must be (batch, num_kv_heads, length, width) of the same {tokens.length} "
            f"tokens; got k={tuple(k.shape)}, v={tuple(v.shape)}. Append them together."
        )


def check_match(held: Tensor, new: Tensor, name: str, *, rows: bool = True) -> None:
    """Refuse keys or values that cannot follow those that are held, or be further rows of them."""
    if new.ndim != 4:
        raise CacheError(
            f"{name} must be (batch, num_kv_heads, length, head_dim); got shape "
            f"{tuple(new.shape)}. Split the heads first."
        )
    same = (held.shape[0] if rows else new.shape[0], held.shape[1], held.shape[3])
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


def check_kind(cache: object, other: object) -> None:
    """Refuse to merge what is no cache of the same kind."""
    if type(other) is not type(cache) or other is cache:
        got = "the same one" if other is cache else type(other).__name__
        raise CacheError(
            f"a {type(cache).__name__} must be merged with another of its kind; got {got}. "
            f"Give every request a cache of one kind; split(index) makes copies of rows."
        )


def check_count_held(count: int, held: int) -> None:
    """Refuse to forget more tokens than there are."""
    check_count("count", count, least=0)
    if count > held:
        raise CacheError(
            f"count must be at most the {held} tokens that are held; got count={count}. Roll "
            f"back less, or take a new cache."
        )


def check_filled(held: Cached | None) -> Cached:
    """What is held, or an error."""
    if held is None:
        raise CacheError(
            "a cache must hold tokens before its rows can be reordered or read; got an empty one. "
            "Append first."
        )
    return held


def check_no_gradient(cache: object, k: Tensor, v: Tensor) -> None:
    """Refuse keys and values whose gradients would be lost without a word."""
    if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        name = type(cache).__name__
        raise CacheError(
            f"a {name} must be filled without gradients; got keys or values that require them. "
            f"Call the model under torch.no_grad(), or train through a GrowingCache."
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
