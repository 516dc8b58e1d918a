"""What a layer refuses before it does any work."""

import torch
from torch import Tensor

from manyheads.cache import Cache, Cached, CrossCache
from manyheads.errors import CacheError, DeviceError, DTypeError, OptionError, ShapeError
from manyheads.positions import Rotary
from manyheads.shapes import check_count, head_counts


def checked_kv_heads(num_heads: int, num_kv_heads: int | None) -> int:
    """The number of key and value heads, which divides that of the query heads."""
    if num_kv_heads is None:
        return num_heads
    check_count("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise OptionError(
            f"num_kv_heads must divide num_heads={num_heads}; got num_kv_heads={num_kv_heads}. "
            f"These do: {head_counts(num_heads)}."
        )
    return num_kv_heads


def checked_head_dim(d_model: int, num_heads: int, head_dim: int | None) -> int:
    """The width of a head: as given, or its share of the stream."""
    if head_dim is not None:
        return check_count("head_dim", head_dim)
    if d_model % num_heads:
        raise OptionError(
            f"num_heads must divide d_model={d_model}; got num_heads={num_heads}. These do: "
            f"{head_counts(d_model)}. Or give head_dim."
        )
    return d_model // num_heads


def checked_rotary(rotary: Rotary | None, head_dim: int | None = None) -> Rotary | None:
    """A rotary that turns heads of this width, of any if there is none; or none."""
    if rotary is not None and not isinstance(rotary, Rotary):
        raise OptionError(
            f"rotary must be an object Rotary(...) or None; got rotary={rotary!r}. Write "
            f"rotary=Rotary(head_dim)."
        )
    if rotary is not None and head_dim is not None and rotary.head_dim != head_dim:
        raise OptionError(
            f"rotary must turn heads of width head_dim={head_dim}; got "
            f"rotary.head_dim={rotary.head_dim}. Write Rotary({head_dim})."
        )
    return rotary


def check_stream(name: str, x: Tensor, width: int, weight: Tensor | None) -> None:
    """Refuse what is not a stream of this width, where and of what dtype a weight is."""
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"{name} must be a torch.Tensor; got {name}={type(x).__name__}. Convert it with "
            f"torch.as_tensor."
        )
    if x.ndim != 3 or x.shape[2] != width:
        raise ShapeError(
            f"{name} must be (batch, length, {width}); got shape {tuple(x.shape)}. Batch comes "
            f"first; add it with {name}[None] if there is none."
        )
    if not x.dtype.is_floating_point:
        raise DTypeError(
            f"{name} must be a floating-point tensor; got {name}={x.dtype}. Embed token ids first."
        )
    if weight is not None and (x.dtype is not weight.dtype or x.device != weight.device):
        _check_place(name, x, weight)


def _check_place(name: str, x: Tensor, weight: Tensor) -> None:
    # Weights on the meta device or of other kinds of numbers are someone's who moves them in time.
    if x.device != weight.device and not weight.is_meta:
        raise DeviceError(
            f"{name} must be where the layer is, on {weight.device}; got {name}={x.device}. Move "
            f"it with .to({str(weight.device)!r})."
        )
    ordinary = weight.is_floating_point() and weight.itemsize > 1
    if x.dtype != weight.dtype and ordinary and not torch.is_autocast_enabled(x.device.type):
        raise DTypeError(
            f"{name} must have the layer's dtype, {weight.dtype}; got {name}={x.dtype}. Convert it "
            f"with .to({weight.dtype}), the layer with .to({x.dtype}), or run under "
            f"torch.autocast."
        )


def check_same_tokens(x: Tensor, context: Tensor | None, value: Tensor | None) -> None:
    """Refuse streams of one call that do not go together."""
    if context is not None and context.shape[0] != x.shape[0]:
        raise ShapeError(
            f"x and context must have one batch size; got x={x.shape[0]}, "
            f"context={context.shape[0]}. Expand the smaller one."
        )
    if value is not None and (context is None or value.shape[:2] != context.shape[:2]):
        got = None if context is None else tuple(context.shape[:2])
        raise ShapeError(
            f"value must have the context's batch and length; got value="
            f"{tuple(value.shape[:2])}, context={got}. Each key needs its value."
        )


def check_cache(cache: object) -> None:
    """Refuse what is no cache of one attention."""
    if cache is not None and not isinstance(cache, Cache):
        raise CacheError(
            f"cache must be one of manyheads.cache; got cache={type(cache).__name__}. Take "
            f"GrowingCache() for a text, CrossCache() for a context."
        )


def held_context(cache: Cache | None, x: Tensor, context: Tensor | None) -> Cached | None:
    """What a cache holds of a context; None if the context must still be projected."""
    if cache is None:
        return None
    if not isinstance(cache, CrossCache):
        raise CacheError(
            f"attention to a context must have a CrossCache; got {type(cache).__name__}. A "
            f"growing cache holds a text that attends to itself."
        )
    if cache.wants_keys and context is not None:
        return None
    held = cache.read()
    size = (x.shape[0], held.tokens.length if context is None else context.shape[1])
    if size != (held.k.shape[0], held.tokens.length):
        raise CacheError(
            f"cache must hold this context, of (batch, length) = {size}; got one of "
            f"{(held.k.shape[0], held.tokens.length)}. Take a new CrossCache for another context, "
            f"or reorder this one."
        )
    return held
