"""Attention for PyTorch that you can trust, see and afford."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The public names in reading order, by the part that they live in. A part is imported when a name
# of it is first asked for, so that `import manyheads` costs next to nothing.
_PARTS = {
    "functional": (
        "attention",
        "attention_with_weights",
        "attention_with_lse",
        "attention_scores",
        "explain",
        "statistics",
        "linear_attention",
        "performer_attention",
        "RandomFeatures",
        "lsh_attention",
        "nystrom_attention",
        "linformer_attention",
        "compare",
    ),
    "masks": (
        "Mask",
        "Causal",
        "Window",
        "Dilated",
        "Strided",
        "Fixed",
        "Dyadic",
        "RandomBlocks",
        "Neighbourhood",
        "Tiles",
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
    ),
    "positions": (
        "Sinusoidal",
        "Learned",
        "Rotary",
        "LinearScaling",
        "NTKScaling",
        "DynamicNTKScaling",
        "YaRN",
        "Llama3Scaling",
        "LongRoPE",
        "Axial",
        "Sections",
        "Bias",
        "ALiBi",
        "T5Bias",
        "TransformerXLBias",
        "ShawBias",
        "ShawValues",
    ),
    "layers": (
        "MultiHeadAttention",
        "Scores",
        "DifferentialAttention",
        "LatentAttention",
        "to_grouped",
        "FeedForward",
        "EncoderLayer",
        "DecoderLayer",
        "LayerCache",
    ),
    "cache": (
        "GrowingCache",
        "FixedCache",
        "RingCache",
        "QuantizedCache",
        "PagedCache",
        "CrossCache",
        "predict_bytes",
        "compare_memory",
    ),
    "models": (
        "Transformer",
        "TransformerConfig",
        "Decoder",
        "DecoderConfig",
        "generate",
        "stream",
        "beam_search",
        "Sampling",
        "Stop",
        "Draft",
    ),
}

__all__ = [name for names in _PARTS.values() for name in names]

if TYPE_CHECKING:  # the same names, for those who read code without running it
    from manyheads.cache import (
        CrossCache,
        FixedCache,
        GrowingCache,
        PagedCache,
        QuantizedCache,
        RingCache,
        compare_memory,
        predict_bytes,
    )
    from manyheads.functional import (
        RandomFeatures,
        attention,
        attention_scores,
        attention_with_lse,
        attention_with_weights,
        compare,
        explain,
        linear_attention,
        linformer_attention,
        lsh_attention,
        nystrom_attention,
        performer_attention,
        statistics,
    )
    from manyheads.layers import (
        DecoderLayer,
        DifferentialAttention,
        EncoderLayer,
        FeedForward,
        LatentAttention,
        LayerCache,
        MultiHeadAttention,
        Scores,
        to_grouped,
    )
    from manyheads.masks import (
        Causal,
        Dense,
        Dilated,
        Documents,
        Dyadic,
        Fixed,
        Global,
        Mask,
        Neighbourhood,
        Padding,
        PerHead,
        Prefix,
        RandomBlocks,
        Rule,
        Strided,
        Tiles,
        Window,
        from_attention_mask,
        from_attn_mask,
        from_key_padding_mask,
        from_sdpa_mask,
    )
    from manyheads.models import (
        Decoder,
        DecoderConfig,
        Draft,
        Sampling,
        Stop,
        Transformer,
        TransformerConfig,
        beam_search,
        generate,
        stream,
    )
    from manyheads.positions import (
        ALiBi,
        Axial,
        Bias,
        DynamicNTKScaling,
        Learned,
        LinearScaling,
        Llama3Scaling,
        LongRoPE,
        NTKScaling,
        Rotary,
        Sections,
        ShawBias,
        ShawValues,
        Sinusoidal,
        T5Bias,
        TransformerXLBias,
        YaRN,
    )


def __getattr__(name: str) -> Any:
    for part, names in _PARTS.items():
        if name in names:
            value = getattr(import_module(f"manyheads.{part}"), name)
            break
    else:
        value = _part(name)
    globals()[name] = value
    return value


def _part(name: str) -> Any:
    try:
        return import_module(f"manyheads.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"manyheads.{name}":
            raise
        raise AttributeError(f"module 'manyheads' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
