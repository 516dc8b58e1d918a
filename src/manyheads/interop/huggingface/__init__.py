"""Models of Hugging Face, as ours; only `cache`, for their own models, imports transformers."""

from manyheads.interop.huggingface.families import FAMILIES
from manyheads.interop.huggingface.load import from_huggingface

__all__ = ["FAMILIES", "from_huggingface"]
