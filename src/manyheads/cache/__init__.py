"""Keys and values that are computed once."""

from manyheads.cache.base import Cache
from manyheads.cache.blocks import BlockPool
from manyheads.cache.cached import Cached
from manyheads.cache.cross import CrossCache
from manyheads.cache.fixed import FixedCache
from manyheads.cache.growing import GrowingCache
from manyheads.cache.memory import MemoryTable, compare_memory, predict_bytes
from manyheads.cache.paged import PagedCache
from manyheads.cache.quantized import QuantizedCache
from manyheads.cache.ring import RingCache

CACHES: dict[str, type[Cache]] = {
    "growing": GrowingCache,
    "fixed": FixedCache,
    "ring": RingCache,
    "quantized": QuantizedCache,
    "paged": PagedCache,
    "cross": CrossCache,
}
"""Every cache by its short name."""

__all__ = [
    "CACHES",
    "BlockPool",
    "Cache",
    "Cached",
    "CrossCache",
    "FixedCache",
    "GrowingCache",
    "MemoryTable",
    "PagedCache",
    "QuantizedCache",
    "RingCache",
    "compare_memory",
    "predict_bytes",
]
