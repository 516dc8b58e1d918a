"""Tables of rotaries as Hugging Face makes them, from the numbers of models that have them."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.qwen2_vl.configuration_qwen2_vl import (
    Qwen2VLTextConfig,
    Qwen2VLVisionConfig,
)
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLRotaryEmbedding,
    Qwen2VLVisionRotaryEmbedding,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

import manyheads as mh
from manyheads.positions import Scaling

SHORT = (1.05,) * 3 + (1.1,) * 3 + (1.25,) * 2 + (1.4, 1.45, 1.55, 1.85, 1.9) + (2.0,) * 19
SHORT += (2.1, 2.1, 2.2) + (2.35,) * 4 + (2.4, 2.4, 2.65, 2.7, 2.9, 2.95) + (3.05,) * 3
LONG = (1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49)
LONG += (9.09, 11.58, 15.66, 15.77, 15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95)
LONG += (53.84, 56.2, 57.95, 59.29, 59.77, 59.92, 61.19, 61.96, 62.5, 63.37, 63.48, 63.48, 63.66)
LONG += (63.85, 64.08, 64.76, 64.8, 64.81, 64.81)

# Of each: width of a head, base, the longest text of the config, its rope_scaling, and ours.
MODELS: dict[str, tuple[int, float, int, dict[str, object], Scaling]] = {
    "deepseek-coder-6.7b": (
        *(128, 1e5, 16384, {"rope_type": "linear", "factor": 4.0}),
        mh.LinearScaling(4.0),
    ),
    "internlm2-chat-7b": (
        *(128, 1e6, 32768, {"rope_type": "dynamic", "factor": 2.0}),
        mh.DynamicNTKScaling(2.0, original_length=32768),
    ),
    "Qwen2.5-7B-Instruct": (
        *(128, 1e6, 32768),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        mh.YaRN(4.0, 32768),
    ),
    "gpt-oss-20b": (
        *(64, 150000.0, 131072),
        {
            **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
        mh.YaRN(32.0, 4096, ramp="unrounded"),
    ),
    "DeepSeek-V3": (
        *(64, 10000.0, 163840),
        {
            **{"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        mh.YaRN(40.0, 4096, mscale=1.0, mscale_all=1.0),
    ),
    "DeepSeek-V2-Lite": (
        *(64, 10000.0, 163840),
        {
            **{"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
        mh.YaRN(40.0, 4096, mscale=0.707, mscale_all=0.707),
    ),
    "Llama-3.1-8B": (
        *(128, 5e5, 131072),
        {
            **{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        },
        mh.Llama3Scaling(8.0, original_length=8192),
    ),
    "Llama-3.2-1B": (
        *(64, 5e5, 131072),
        {
            **{"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192},
            **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        },
        mh.Llama3Scaling(32.0, original_length=8192),
    ),
    "Phi-3-vision-128k-instruct": (
        *(96, 10000.0, 131072),
        {
            **{"rope_type": "longrope", "original_max_position_embeddings": 4096},
            **{"factor": 32.0, "short_factor": list(SHORT), "long_factor": list(LONG)},
        },
        mh.LongRoPE(SHORT, LONG, original_length=4096, factor=32.0),
    ),
}


@pytest.mark.parametrize("length", [5, 4096, 4097, 40000, 131072])
@pytest.mark.parametrize("model", MODELS)
def test_frequencies_and_gain_are_those_of_hugging_face(model: str, length: int) -> None:
    width, base, longest, options, scaling = MODELS[model]
    config = LlamaConfig(
        hidden_size=width * 4,
        num_attention_heads=4,
        max_position_embeddings=longest,
        rope_parameters={"rope_theta": base, **options},
    )
    expected, gain = ROPE_INIT_FUNCTIONS[str(options["rope_type"])](config, seq_len=length)
    if scaling.depends_on_length:
        found = scaling.frequencies_at(width, base, torch.tensor([length]))[0].numpy()
    else:
        found = np.array(scaling.frequencies(width, base))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    assert scaling.gain == pytest.approx(gain, rel=1e-12)
    # Ours made for a rotary turns features as theirs do.
    rotary = mh.Rotary(width, base=base, scaling=scaling)
    turn = rotary.at(torch.tensor([7]), length=length, like=torch.zeros(1, 1, 1, width))
    np.testing.assert_allclose(turn.cos.flatten(), (7 * expected).cos() * gain, atol=1e-6)


def test_half_a_head_turns_in_gpt_neox() -> None:
    """Pythia: rotary_pct 0.25 of heads of 64 (410m)."""
    config = LlamaConfig(hidden_size=1024, num_attention_heads=16, max_position_embeddings=2048)
    config.rope_parameters = {
        **{"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        "partial_rotary_factor": 0.25,
    }
    expected, _ = ROPE_INIT_FUNCTIONS["linear"](config)
    rotary = mh.Rotary(64, rotary_dim=16, scaling=mh.LinearScaling(2.0))
    assert expected.shape == (8,)
    np.testing.assert_allclose(rotary._frequencies, expected, rtol=1e-6)


COORDINATES = torch.tensor(
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4], [5, 5, 5]]
)


def test_sections_are_the_m_rope_of_qwen2_vl() -> None:
    options = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = Qwen2VLTextConfig(hidden_size=3584, num_attention_heads=28, rope_parameters=options)
    _agrees(Qwen2VLRotaryEmbedding(config), mh.Sections((16, 24, 24)), 1e6)


def test_sections_interleave_in_qwen3_vl() -> None:
    options = {
        **{"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
        "mrope_interleaved": True,
    }
    config = Qwen3VLTextConfig(
        hidden_size=4096, num_attention_heads=32, head_dim=128, rope_parameters=options
    )
    axes = mh.Sections((24, 20, 20), order="interleaved")
    _agrees(Qwen3VLTextRotaryEmbedding(config), axes, 5e6)


def _agrees(theirs: torch.nn.Module, axes: mh.Sections, base: float) -> None:
    x = torch.zeros(1, 1, 8, 128)
    cos, sin = theirs(x, COORDINATES.T[:, None])
    turn = mh.Rotary(128, base=base, axes=axes).at(coordinates=COORDINATES, like=x)
    torch.testing.assert_close(turn.cos, cos[0, :, :64], atol=1e-6, rtol=0)
    torch.testing.assert_close(turn.sin, sin[0, :, :64], atol=1e-6, rtol=0)


def test_axial_is_the_rotary_of_vision_towers() -> None:
    """Heads of 64 in Pixtral, of 80 in Qwen2-VL."""
    pixtral = PixtralVisionConfig(hidden_size=1024, num_attention_heads=16)
    qwen = Qwen2VLVisionConfig(embed_dim=1280, num_heads=16)
    qwen.num_attention_heads = 16
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(5), indexing="ij")
    coordinates = torch.stack((rows, columns), dim=-1).flatten(0, 1)
    for theirs, axes, width in (
        (PixtralVisionRotaryEmbedding(pixtral), mh.Axial(2, spectrum="shared"), 64),
        (Qwen2VLVisionRotaryEmbedding(qwen), mh.Axial(2), 80),
    ):
        x = torch.zeros(1, 1, 20, width)
        cos, sin = theirs(x, coordinates.T[None])
        turn = mh.Rotary(width, axes=axes).at(coordinates=coordinates, like=x)
        half = slice(width // 2)
        torch.testing.assert_close(turn.cos, cos.reshape(20, width)[:, half], atol=1e-6, rtol=0)
        torch.testing.assert_close(turn.sin, sin.reshape(20, width)[:, half], atol=1e-6, rtol=0)
