"""Models of Hugging Face, as ours; and our caches in theirs (`cache`, which needs transformers)."""

from manyheads.interop.huggingface.families import FAMILIES
from manyheads.interop.huggingface.load import from_huggingface

__all__ = ["FAMILIES", "from_huggingface"]
