"""Attention layers of language models in Hugging Face that change scores or outputs, and ours."""

import pytest
import torch
from tests.interop_huggingface.theirs import CALLS, Theirs, assert_alike, copy_into, renamed
from transformers import (
    DiffLlamaConfig,
    Gemma2Config,
    GptOssConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3NextConfig,
)
from transformers.models.diffllama.modeling_diffllama import (
    DiffLlamaAttention,
    DiffLlamaRotaryEmbedding,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2RotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextAttention,
    Qwen3NextRotaryEmbedding,
)

import manyheads as mh

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
}
NAMES = {name: name for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")}
NAMES |= {"o_proj": "out_proj", "sinks": "sink_logits"}
DIFFERENTIAL_NAMES = NAMES | {f"lambda_{x}": f"balance.{x}" for x in ("q1", "k1", "q2", "k2")}
WINDOW = 6

every_call = pytest.mark.parametrize("call", CALLS)
alternate = pytest.mark.parametrize("layer", [0, 1])


def eager(config: PretrainedConfig) -> PretrainedConfig:
    config._attn_implementation = "eager"
    return config


def seen_by(config: PretrainedConfig, layer: int) -> tuple[bool, mh.Mask]:
    """Whether a layer has a window, and our mask of it: theirs, too, counts the query itself."""
    sliding = config.layer_types[layer] == "sliding_attention"
    return sliding, mh.Causal() & mh.Window(WINDOW) if sliding else mh.Causal()


@every_call
@alternate
@pytest.mark.parametrize("cache", ["growing", "ring"])
def test_gemma_2_is_a_scale_a_softcap_and_windows_in_every_other_layer(
    layer: int, call: str, cache: str
) -> None:
    """Their ``query_pre_attn_scalar`` is our scale to the power -2; the first layer slides.

    A row of padding sees the mean of all values in theirs and nobody in ours, here and below.
    """
    config = eager(
        Gemma2Config(
            **SIZES, query_pre_attn_scalar=7, attn_logit_softcapping=3.0, sliding_window=WINDOW
        )
    )
    sliding, mask = seen_by(config, layer)
    assert sliding == (layer == 0)
    theirs = Theirs(
        Gemma2Attention(config, layer), config, Gemma2RotaryEmbedding(config), sliding=sliding
    )
    ours = mh.MultiHeadAttention(
        *(32, 4),
        num_kv_heads=2,
        head_dim=10,
        bias=False,
        rotary=mh.Rotary(10),
        scores=mh.Scores(scale=7**-0.5, softcap=3.0),
    )
    copy_into(ours, renamed(theirs.attention, NAMES))
    ring = sliding and cache == "ring"
    held = (lambda: mh.RingCache(WINDOW)) if ring else mh.GrowingCache
    assert_alike(ours, theirs, mask, cache=held, **CALLS[call])


@every_call
@alternate
def test_gpt_oss_is_sinks_yarn_and_windows_in_every_other_layer(layer: int, call: str) -> None:
    """Their weights, like ours, leave out what the sink takes.

    Theirs have the ramp of YaRN that is not rounded, ``truncate=False``.
    """
    yarn = {
        **{"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "rope_theta": 150000.0},
    }
    config = eager(
        GptOssConfig(**SIZES, sliding_window=WINDOW, rope_parameters=yarn, attention_bias=True)
    )
    sliding, mask = seen_by(config, layer)
    theirs = Theirs(
        GptOssAttention(config, layer), config, GptOssRotaryEmbedding(config), sliding=sliding
    )
    scaling = mh.YaRN(8.0, 16, ramp="unrounded")
    ours = mh.MultiHeadAttention(
        *(32, 4),
        num_kv_heads=2,
        head_dim=10,
        rotary=mh.Rotary(10, base=150000.0, scaling=scaling),
        scores=mh.Scores(sinks=True),
    )
    copy_into(ours, renamed(theirs.attention, NAMES))
    assert_alike(ours, theirs, mask, **CALLS[call])


@every_call
def test_qwen_3_normalises_queries_and_keys_before_their_turn(call: str) -> None:
    config = eager(Qwen3Config(**SIZES))
    theirs = Theirs(Qwen3Attention(config, 0), config, Qwen3RotaryEmbedding(config))
    ours = mh.MultiHeadAttention(
        *(32, 4), num_kv_heads=2, head_dim=10, bias=False, rotary=mh.Rotary(10), qk_norm="rms"
    )
    copy_into(ours, renamed(theirs.attention, NAMES))
    assert_alike(ours, theirs, mh.Causal(), **CALLS[call])


@every_call
@pytest.mark.parametrize("bias", [False, True])
def test_qwen_3_next_gates_every_channel(bias: bool, call: str) -> None:
    """Their ``q_proj`` holds, head by head, queries and then gates; ours has a ``gate_proj``.

    Their norms multiply by 1 + weight, and a quarter of each head turns.
    """
    share = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4}
    config = eager(
        Qwen3NextConfig(
            **SIZES,
            rope_parameters=share,
            attention_bias=bias,
            layer_types=["full_attention"] * 2,
        )
    )
    theirs = Theirs(Qwen3NextAttention(config, 0), config, Qwen3NextRotaryEmbedding(config))
    ours = mh.MultiHeadAttention(
        *(32, 4),
        num_kv_heads=2,
        head_dim=10,
        bias=bias,
        rotary=mh.Rotary(10, rotary_dim=4),
        qk_norm="rms",
        gate="channel",
    )
    state = renamed(theirs.attention, NAMES)
    for kind in ("weight", "bias") if bias else ("weight",):
        both = state[f"q_proj.{kind}"].unflatten(0, (4, 2, 10))
        state[f"q_proj.{kind}"], state[f"gate_proj.{kind}"] = (
            part.flatten(0, 1) for part in both.unbind(1)
        )
    for name in ("q_norm.weight", "k_norm.weight"):
        state[name] = 1 + state[name]
    copy_into(ours, state)
    assert_alike(ours, theirs, mh.Causal(), **CALLS[call])


@every_call
@pytest.mark.parametrize("depth", [0, 5])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_diffllama_is_differential_attention(kv_heads: int, depth: int, call: str) -> None:
    """Theirs return the weights of both maps, ours their difference: see the next test."""
    sizes = {**SIZES, "num_key_value_heads": kv_heads, "num_hidden_layers": 6}
    config = eager(DiffLlamaConfig(**sizes, rms_norm_eps=1e-5))
    attention = DiffLlamaAttention(config, depth)
    attention.layer_idx = 0  # from here on it says only which of a model's caches is its own
    theirs = Theirs(attention, config, DiffLlamaRotaryEmbedding(config))
    ours = mh.DifferentialAttention(
        *(32, 4), depth=depth, num_kv_heads=kv_heads, head_dim=10, bias=False, rotary=mh.Rotary(10)
    )
    copy_into(ours, renamed(attention, DIFFERENTIAL_NAMES))
    assert_alike(ours, theirs, mh.Causal(), weights=False, **CALLS[call])


@torch.no_grad()
def test_the_difference_of_their_maps_are_our_weights() -> None:
    config = eager(DiffLlamaConfig(**SIZES))
    theirs = Theirs(DiffLlamaAttention(config, 0), config, DiffLlamaRotaryEmbedding(config))
    ours = mh.DifferentialAttention(
        32, 4, num_kv_heads=2, head_dim=10, bias=False, rotary=mh.Rotary(10)
    )
    copy_into(ours, renamed(theirs.attention, DIFFERENTIAL_NAMES))
    x = torch.randn(2, 9, 32)
    _, maps = theirs(x, torch.ones(2, 9, dtype=torch.bool))
    first, second = maps.chunk(2, dim=1)
    _, weights = ours.with_weights(x, mask=mh.Causal())
    torch.testing.assert_close(weights, first - ours.balance() * second, atol=1e-5, rtol=1e-5)
