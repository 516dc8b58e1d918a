"""Small reference models."""

from manyheads.models.generation import generate
from manyheads.models.transformer import Memory, Transformer, TransformerConfig

__all__ = ["Memory", "Transformer", "TransformerConfig", "generate"]
