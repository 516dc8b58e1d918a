"""Parts with weights: each holds them and calls a function."""

from manyheads.layers.block import Block
from manyheads.layers.decoder import DecoderLayer, LayerCache
from manyheads.layers.encoder import EncoderLayer
from manyheads.layers.feed_forward import FeedForward
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Residual

__all__ = [
    "Block",
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "LayerCache",
    "MultiHeadAttention",
    "Residual",
]
