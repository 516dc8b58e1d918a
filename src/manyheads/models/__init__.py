"""Small reference models."""

from manyheads.models.config import TransformerConfig
from manyheads.models.decoder import Decoder
from manyheads.models.decoder_config import DecoderConfig
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
from manyheads.models.presets import PRESETS
from manyheads.models.transformer import Memory, Transformer

__all__ = [
    "PRESETS",
    "Beams",
    "Decoder",
    "DecoderConfig",
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
