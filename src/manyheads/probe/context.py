"""Whether a layer attends to its own stream, or to a context."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.cache import CrossCache

NAMES = ("context", "key_value_states", "encoder_hidden_states", "cross_attention_states")
"""What layers call the stream that they attend to in the place of their own."""


def reads_context(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a run of a layer was handed another stream to attend to than the one that asks.

    It is told by the name under which this package's layers and those of Hugging Face take it; in
    torch's own layer by keys that are not the queries. What has no such name counts as its own.

    Args:
        module: The layer.
        args: What its forward was handed, in order.
        kwargs: And by name.

    Example:
        >>> layer, x = nn.MultiheadAttention(8, 2), torch.randn(3, 8)
        >>> reads_context(layer, (x, x, x), {}), reads_context(layer, (x, x[:2], x[:2]), {})
        (False, True)
    """
    try:
        given = signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a forward that tells nothing of what it takes
        return False
    names = ("key",) if isinstance(module, nn.MultiheadAttention) else NAMES
    streams = [given[name] for name in names if isinstance(given.get(name), Tensor)]
    if not streams:
        return isinstance(given.get("cache"), CrossCache)
    return not _same(next(iter(given.values())), streams[0])


def _same(own: Any, other: Tensor) -> bool:
    """Whether two streams are one, or hold the same: keys may be made apart from queries."""
    if own is other or not isinstance(own, Tensor):
        return own is other
    alike = (own.shape, own.dtype, own.device) == (other.shape, other.dtype, other.device)
    return alike and not own.is_meta and torch.equal(own, other)
