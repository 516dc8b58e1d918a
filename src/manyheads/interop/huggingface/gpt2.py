"""GPT-2 in Hugging Face: its numbers and its names."""

from collections.abc import Mapping
from typing import Any

from manyheads.errors import OptionError
from manyheads.interop.huggingface.numbers import need, refuse_others
from manyheads.layers.feed_forward import Activation
from manyheads.models import DecoderConfig

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}

NAMES = {
    "wte": "embedding.tokens",
    "wpe": "embedding.positions",
    "h.{}.ln_1": "layers.{}.attention_residual.norm",
    "h.{}.attn.c_attn": "layers.{}.self_attention.qkv_proj",
    "h.{}.attn.c_proj": "layers.{}.self_attention.out_proj",
    "h.{}.ln_2": "layers.{}.feed_forward_residual.norm",
    "h.{}.mlp.c_fc": "layers.{}.feed_forward.up",
    "h.{}.mlp.c_proj": "layers.{}.feed_forward.down",
    "ln_f": "norm",
    "lm_head": "output",
}

IGNORED = ("h.{}.attn.bias", "h.{}.attn.masked_bias")
"""Causal masks, which old checkpoints hold."""


def config(numbers: Mapping[str, Any]) -> DecoderConfig:
    """Our numbers from those of a GPT2Config."""
    refuse_others(
        numbers,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    activation = numbers.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise OptionError(
            f"activation_function must be one of {', '.join(ACTIVATIONS)}; got "
            f"activation_function={activation!r}. A Decoder has no other."
        )
    return DecoderConfig(
        vocab_size=need(numbers, "vocab_size"),
        d_model=need(numbers, "n_embd"),
        num_heads=need(numbers, "n_head"),
        num_layers=need(numbers, "n_layer"),
        d_hidden=numbers.get("n_inner") or 4 * need(numbers, "n_embd"),
        norm="layer",
        eps=numbers.get("layer_norm_epsilon", 1e-5),
        activation=ACTIVATIONS[activation],
        bias=True,
        positions="learned",
        max_length=need(numbers, "n_positions"),
        tied=numbers.get("tie_word_embeddings", True),
    )
