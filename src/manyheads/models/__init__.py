"""Small reference models."""

from manyheads.models.config import TransformerConfig
from manyheads.models.decoder import Decoder
from manyheads.models.decoder_config import DecoderConfig
from manyheads.models.generation import generate
from manyheads.models.presets import PRESETS
from manyheads.models.transformer import Memory, Transformer

__all__ = [
    "PRESETS",
    "Decoder",
    "DecoderConfig",
    "Memory",
    "Transformer",
    "TransformerConfig",
    "generate",
]
