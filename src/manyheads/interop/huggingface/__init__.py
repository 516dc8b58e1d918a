"""Models of Hugging Face, as ours; the transformers library is never imported."""

from manyheads.interop.huggingface.families import FAMILIES
from manyheads.interop.huggingface.load import from_huggingface

__all__ = ["FAMILIES", "from_huggingface"]
