"""Small reference models."""

from manyheads.models.config import TransformerConfig
from manyheads.models.generation import (
    Beams,
    Draft,
    LanguageModel,
    Sampling,
    Step,
    Stop,
    assemble_weights,
    beam_search,
    generate,
    stream,
)
from manyheads.models.transformer import Memory, Transformer

__all__ = [
    "Beams",
    "Draft",
    "LanguageModel",
    "Memory",
    "Sampling",
    "Step",
    "Stop",
    "Transformer",
    "TransformerConfig",
    "assemble_weights",
    "beam_search",
    "generate",
    "stream",
]
