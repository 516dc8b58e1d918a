"""Parts with weights: each holds them and calls a function."""

from manyheads.layers.block import Block
from manyheads.layers.decoder import DecoderLayer, LayerCache
from manyheads.layers.differential import DifferentialAttention
from manyheads.layers.encoder import EncoderLayer
from manyheads.layers.feed_forward import FeedForward
from manyheads.layers.grouping import Grouped, to_grouped
from manyheads.layers.latent import LatentAttention
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.residual import Residual
from manyheads.layers.scores import Scores

__all__ = [
    "Block",
    "DecoderLayer",
    "DifferentialAttention",
    "EncoderLayer",
    "FeedForward",
    "Grouped",
    "LatentAttention",
    "LayerCache",
    "MultiHeadAttention",
    "Residual",
    "Scores",
    "to_grouped",
]
