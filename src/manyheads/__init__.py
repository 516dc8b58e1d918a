"""Attention for PyTorch that you can trust, see and afford."""

from manyheads.cache import CrossCache, GrowingCache
from manyheads.functional import (
    attention,
    attention_scores,
    attention_with_lse,
    attention_with_weights,
    explain,
)
from manyheads.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerCache,
    MultiHeadAttention,
)
from manyheads.masks import (
    Causal,
    Dense,
    Documents,
    Global,
    Mask,
    Padding,
    PerHead,
    Prefix,
    Rule,
    Window,
    from_attention_mask,
    from_attn_mask,
    from_key_padding_mask,
    from_sdpa_mask,
)
from manyheads.models import Transformer, TransformerConfig
from manyheads.positions import Learned, Rotary, Sinusoidal

__version__ = "0.1.0"

__all__ = [
    "attention",
    "attention_with_weights",
    "attention_with_lse",
    "attention_scores",
    "explain",
    "Mask",
    "Causal",
    "Window",
    "Padding",
    "Documents",
    "Prefix",
    "Global",
    "PerHead",
    "Rule",
    "Dense",
    "from_attention_mask",
    "from_key_padding_mask",
    "from_attn_mask",
    "from_sdpa_mask",
    "Sinusoidal",
    "Learned",
    "Rotary",
    "MultiHeadAttention",
    "FeedForward",
    "EncoderLayer",
    "DecoderLayer",
    "GrowingCache",
    "CrossCache",
    "LayerCache",
    "Transformer",
    "TransformerConfig",
]
