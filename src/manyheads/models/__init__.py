"""Small reference models."""

from manyheads.models.config import TransformerConfig
from manyheads.models.generation import generate
from manyheads.models.transformer import Memory, Transformer

__all__ = ["Memory", "Transformer", "TransformerConfig", "generate"]
