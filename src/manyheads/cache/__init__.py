"""Keys and values that are computed once."""

from manyheads.cache.base import Cache
from manyheads.cache.cached import Cached
from manyheads.cache.cross import CrossCache
from manyheads.cache.fixed import FixedCache
from manyheads.cache.growing import GrowingCache
from manyheads.cache.quantized import QuantizedCache
from manyheads.cache.ring import RingCache

CACHES: dict[str, type[Cache]] = {
    "growing": GrowingCache,
    "fixed": FixedCache,
    "ring": RingCache,
    "quantized": QuantizedCache,
    "cross": CrossCache,
}
"""Every cache by its short name."""

__all__ = [
    "CACHES",
    "Cache",
    "Cached",
    "CrossCache",
    "FixedCache",
    "GrowingCache",
    "QuantizedCache",
    "RingCache",
]
