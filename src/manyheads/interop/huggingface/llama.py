"""Llama and its kin in Hugging Face: their numbers and their names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from manyheads.interop.huggingface.numbers import need, refuse_others, rotary_of
from manyheads.models import DecoderConfig

NAMES = {
    "embed_tokens": "embedding.tokens",
    "layers.{}.input_layernorm": "layers.{}.attention_residual.norm",
    "layers.{}.self_attn.q_proj": "layers.{}.self_attention.q_proj",
    "layers.{}.self_attn.k_proj": "layers.{}.self_attention.k_proj",
    "layers.{}.self_attn.v_proj": "layers.{}.self_attention.v_proj",
    "layers.{}.self_attn.o_proj": "layers.{}.self_attention.out_proj",
    "layers.{}.post_attention_layernorm": "layers.{}.feed_forward_residual.norm",
    "layers.{}.mlp.gate_proj": "layers.{}.feed_forward.gate",
    "layers.{}.mlp.up_proj": "layers.{}.feed_forward.up",
    "layers.{}.mlp.down_proj": "layers.{}.feed_forward.down",
    "norm": "norm",
    "lm_head": "output",
}


def config(numbers: Mapping[str, Any]) -> DecoderConfig:
    """Our numbers from those of a LlamaConfig."""
    bias = bool(numbers.get("attention_bias", False))
    refuse_others(numbers, hidden_act="silu")
    refuse_others({"mlp_bias": False, **numbers}, mlp_bias=bias)
    base, scaling = rotary_of(numbers)
    return DecoderConfig(
        vocab_size=need(numbers, "vocab_size"),
        d_model=need(numbers, "hidden_size"),
        num_heads=need(numbers, "num_attention_heads"),
        num_kv_heads=numbers.get("num_key_value_heads"),
        head_dim=numbers.get("head_dim"),
        num_layers=need(numbers, "num_hidden_layers"),
        d_hidden=need(numbers, "intermediate_size"),
        eps=numbers.get("rms_norm_eps", 1e-6),
        bias=bias,
        rotary_base=base,
        rotary_scaling=scaling,
        tied=numbers.get("tie_word_embeddings", False),
    )


def mistral_config(numbers: Mapping[str, Any]) -> DecoderConfig:
    """Our numbers from those of a MistralConfig."""
    return replace(config(numbers), window=numbers.get("sliding_window"))


def qwen2_config(numbers: Mapping[str, Any]) -> DecoderConfig:
    """Our numbers from those of a Qwen2Config."""
    refuse_others(numbers, use_sliding_window=False)
    return replace(config(numbers), bias="qkv")
