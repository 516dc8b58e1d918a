"""The numbers of models that are known by name; weights are not part of it."""

from typing import Any

from manyheads.errors import OptionError, is_named, nearest
from manyheads.models.decoder_config import DecoderConfig
from manyheads.positions import Llama3Scaling


def _gpt2(d_model: int, num_heads: int, num_layers: int) -> DecoderConfig:
    """GPT-2, Radford et al. 2019, table 2."""
    return DecoderConfig(
        vocab_size=50257,
        d_model=d_model,
        num_heads=num_heads,
        num_layers=num_layers,
        d_hidden=4 * d_model,
        norm="layer",
        activation="gelu_tanh",
        bias=True,
        positions="learned",
        max_length=1024,
        tied=True,
    )


def _llama(
    vocab_size: int,
    d_model: int,
    d_hidden: int,
    num_layers: int,
    heads: tuple[int, int],
    **others: Any,
) -> DecoderConfig:
    """Llama and its kin; heads are those of queries, then those of keys and values."""
    return DecoderConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        num_layers=num_layers,
        d_hidden=d_hidden,
        **others,
    )


_LLAMA3: dict[str, Any] = {"vocab_size": 128256, "rotary_base": 5e5}
_LLAMA31 = {**_LLAMA3, "rotary_scaling": Llama3Scaling(8.0, original_length=8192)}
_LLAMA32 = {**_LLAMA3, "rotary_scaling": Llama3Scaling(32.0, original_length=8192), "tied": True}
_SMOLLM2: dict[str, Any] = {"vocab_size": 49152, "rotary_base": 1e5, "tied": True}
_QWEN25: dict[str, Any] = {"rotary_base": 1e6, "eps": 1e-6, "bias": "qkv"}

PRESETS: dict[str, DecoderConfig] = {
    "tiny": _llama(64, 16, 32, 2, (4, 2), tied=True),
    "small": _llama(512, 128, 344, 4, (4, 2), tied=True),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 16, 24),
    "gpt2-large": _gpt2(1280, 20, 36),
    "gpt2-xl": _gpt2(1600, 25, 48),
    "smollm2-135m": _llama(d_model=576, d_hidden=1536, num_layers=30, heads=(9, 3), **_SMOLLM2),
    "smollm2-360m": _llama(d_model=960, d_hidden=2560, num_layers=32, heads=(15, 5), **_SMOLLM2),
    "smollm2-1.7b": _llama(49152, 2048, 8192, 24, (32, 32), rotary_base=130000.0, tied=True),
    "llama-2-7b": _llama(32000, 4096, 11008, 32, (32, 32)),
    "llama-2-13b": _llama(32000, 5120, 13824, 40, (40, 40)),
    "llama-2-70b": _llama(32000, 8192, 28672, 80, (64, 8)),
    "llama-3-8b": _llama(d_model=4096, d_hidden=14336, num_layers=32, heads=(32, 8), **_LLAMA3),
    "llama-3-70b": _llama(d_model=8192, d_hidden=28672, num_layers=80, heads=(64, 8), **_LLAMA3),
    "llama-3.1-8b": _llama(d_model=4096, d_hidden=14336, num_layers=32, heads=(32, 8), **_LLAMA31),
    "llama-3.1-405b": _llama(
        d_model=16384, d_hidden=53248, num_layers=126, heads=(128, 8), **_LLAMA31
    ),
    "llama-3.2-1b": _llama(d_model=2048, d_hidden=8192, num_layers=16, heads=(32, 8), **_LLAMA32),
    "llama-3.2-3b": _llama(d_model=3072, d_hidden=8192, num_layers=28, heads=(24, 8), **_LLAMA32),
    "mistral-7b": _llama(32000, 4096, 14336, 32, (32, 8), window=4096),
    "qwen2.5-0.5b": _llama(151936, 896, 4864, 24, (14, 2), tied=True, **_QWEN25),
    "qwen2.5-7b": _llama(152064, 3584, 18944, 28, (28, 4), **_QWEN25),
}
"""Configs by name, the smallest first, then family by family."""


def preset(name: str) -> DecoderConfig:
    """The config of this name."""
    if not is_named(name, PRESETS):
        hint = nearest(name, PRESETS, "Choose one.")
        raise OptionError(f"a preset must be one of {', '.join(PRESETS)}; got {name!r}. {hint}")
    return PRESETS[name]
