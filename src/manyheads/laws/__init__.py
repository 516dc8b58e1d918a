"""Laws that every mask, backend and attention function keeps; run them on your own.

A suite is a literal of laws, a law a small function whose first line says what holds.
"""

from manyheads.laws.backend import LAWS as BACKEND_LAWS
from manyheads.laws.backend import check_backend
from manyheads.laws.law import LawBroken, Suite
from manyheads.laws.mask import LAWS as MASK_LAWS
from manyheads.laws.mask import check_mask

SUITES: dict[str, Suite] = {
    "mask": MASK_LAWS,
    "backend": BACKEND_LAWS,
}
"""The laws, by what they are held against."""

__all__ = ["SUITES", "LawBroken", "check_backend", "check_mask"]
