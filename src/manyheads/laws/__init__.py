"""What masks, backends, caches and models promise, as laws; run them on your own.

A suite is a literal of laws, a law a small function whose first line says what holds.
"""

from manyheads.laws.attention import LAWS as ATTENTION_LAWS
from manyheads.laws.attention import Convention, check_attention
from manyheads.laws.backend import LAWS as BACKEND_LAWS
from manyheads.laws.backend import check_backend
from manyheads.laws.cache import LAWS as CACHE_LAWS
from manyheads.laws.cache import check_cache
from manyheads.laws.context import LAWS as CONTEXT_LAWS
from manyheads.laws.law import LawBroken, Suite
from manyheads.laws.mask import LAWS as MASK_LAWS
from manyheads.laws.mask import check_mask
from manyheads.laws.model import LAWS as MODEL_LAWS
from manyheads.laws.model import check_model
from manyheads.laws.ring import LAWS as RING_LAWS
from manyheads.laws.rounding import LAWS as ROUNDING_LAWS

SUITES: dict[str, Suite] = {
    "mask": MASK_LAWS,
    "backend": BACKEND_LAWS,
    "attention": ATTENTION_LAWS,
    "cache": CACHE_LAWS,
    "ring cache": RING_LAWS,
    "rounding cache": ROUNDING_LAWS,
    "context cache": CONTEXT_LAWS,
    "model": MODEL_LAWS,
}
"""The laws, by what they are held against."""

__all__ = [
    "SUITES",
    "Convention",
    "LawBroken",
    "check_attention",
    "check_backend",
    "check_cache",
    "check_mask",
    "check_model",
]
