"""DeepSeek-V3's latent attention in Hugging Face, given the same weights."""

import pytest
import torch
from tests.interop_huggingface.theirs import CALLS, Theirs, assert_alike, copy_into, renamed
from transformers import DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

import manyheads as mh

NAMES = {
    "q_a_proj": "q_down",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "q_up",
    "q_proj": "q_up",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up",
    "o_proj": "out_proj",
}
YARN = {
    **{"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64},
    **{"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.9},
}

BUILDS: dict[str, dict[str, object]] = {
    "latent queries": {"q_lora_rank": 12},
    "plain queries": {"q_lora_rank": None},
    "halves": {"q_lora_rank": 12, "rope_interleave": False},
    "biases": {"q_lora_rank": 12, "attention_bias": True},
    "YaRN": {"q_lora_rank": 12, "rope_parameters": {"rope_theta": 10000.0, **YARN}},
}


def of_both(name: str) -> tuple[Theirs, mh.LatentAttention]:
    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=16,
        qk_rope_head_dim=6,
        qk_nope_head_dim=8,
        v_head_dim=10,
        max_position_embeddings=2560,
        **BUILDS[name],
    )
    config._attn_implementation = "eager"
    attention = DeepseekV3Attention(config, layer_idx=0)
    theirs = Theirs(attention, config, DeepseekV3RotaryEmbedding(config))
    scaling = mh.YaRN(40.0, 64, mscale=0.707, mscale_all=0.9) if name == "YaRN" else None
    pairs = "halves" if name == "halves" else "interleaved"
    ours = mh.LatentAttention(
        *(32, 4, 16),
        head_dim=8,
        value_dim=10,
        query_latent_dim=BUILDS[name]["q_lora_rank"],
        rotary=mh.Rotary(6, pairs=pairs, scaling=scaling),
        bias=name == "biases",
    )
    copy_into(ours, renamed(attention, NAMES))
    return theirs, ours


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", BUILDS)
def test_deepseeks_attention_is_ours(name: str, call: str) -> None:
    """Outputs and weights are theirs, of prompts (expanded) and of steps (absorbed).

    They expand at every step; ours absorbs there, which is the same up to rounding. A row of
    padding sees the mean of all values in theirs and nobody in ours, so real tokens are compared.
    """
    theirs, ours = of_both(name)
    assert_alike(ours, theirs, mh.Causal(), **CALLS[call])


@torch.no_grad()
def test_their_cache_is_as_large_as_ours() -> None:
    """Theirs keeps the latent and the rotary key as a pair, ours side by side."""
    theirs, ours = of_both("latent queries")
    x, cache, other = torch.randn(1, 10, 32), mh.GrowingCache(), DynamicCache(config=theirs.config)
    ours(x, mask=mh.Causal(), cache=cache)
    theirs(x, torch.ones(1, 10, dtype=torch.bool), other)
    held = (other.layers[0].keys, other.layers[0].values)
    assert cache.memory_bytes() == sum(x.nbytes for x in held) == 10 * (16 + 6) * 4
