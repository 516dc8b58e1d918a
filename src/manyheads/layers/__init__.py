"""Parts with weights: each holds them and calls a function."""

from manyheads.layers.decoder import DecoderLayer, LayerCache
from manyheads.layers.encoder import EncoderLayer
from manyheads.layers.feed_forward import FeedForward
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Residual
from manyheads.layers.scores import Scores

__all__ = [
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "LayerCache",
    "MultiHeadAttention",
    "Residual",
    "Scores",
]
