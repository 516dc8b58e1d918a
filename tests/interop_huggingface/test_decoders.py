"""Decoders with the random weights of models of Hugging Face say what those say."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import manyheads as mh
from manyheads.errors import CheckpointError, OptionError
from manyheads.interop.huggingface import FAMILIES, from_huggingface

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def rope(kind: str, **options: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **options}}


GPT2 = {"vocab_size": 96, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
OTHER = {"n_inner": 48, "activation_function": "relu", "layer_norm_epsilon": 1e-2}
TURNS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-2}
LLAMA3 |= rope("llama3", factor=8.0, **TURNS)
LINEAR = {"attention_bias": True, "mlp_bias": True, **rope("linear", factor=3.0)}
YARN = {"max_position_embeddings": 64}
YARN |= rope("yarn", factor=4.0, original_max_position_embeddings=16)
TIED, LOOSE = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config, GPT2),
    "gpt2, other numbers": (GPT2LMHeadModel, GPT2Config, {**GPT2, **OTHER, **LOOSE}),
    "llama": (LlamaForCausalLM, LlamaConfig, SIZES),
    "llama, grouped, llama 3": (LlamaForCausalLM, LlamaConfig, {**SIZES, **LLAMA3, **TIED}),
    "llama, linear, biases": (LlamaForCausalLM, LlamaConfig, {**SIZES, **LINEAR}),
    "llama, yarn": (LlamaForCausalLM, LlamaConfig, {**SIZES, **YARN}),
    "mistral": (
        *(MistralForCausalLM, MistralConfig),
        {**SIZES, "num_key_value_heads": 1, "sliding_window": 5},
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {**SIZES, "num_key_value_heads": 2, **TIED}),
}
TOKENS = torch.randint(3, 96, (2, 14), generator=torch.Generator().manual_seed(2))
KEEP = torch.ones(2, 14, dtype=torch.long)
KEEP[1, :5] = 0


def theirs(name: str) -> PreTrainedModel:
    """No weight is at its beginning: a bias of 0 or a norm of 1 would prove nothing."""
    kind, config, numbers = MODELS[name]
    model = kind(config(**numbers)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return model


def positions(keep: Tensor) -> Tensor:
    return (keep.cumsum(dim=1) - 1).masked_fill(keep == 0, -1)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return theirs(request.param)


@torch.no_grad()
def test_logits_are_theirs(model: PreTrainedModel) -> None:
    ours = from_huggingface(model)
    assert_close(ours(TOKENS), model(TOKENS).logits, rtol=0, atol=1e-5)
    # Noise shrinks by eight orders, a fault stays; but their rotary angles are float32 always.
    exact, noise = ours.double()(TOKENS), 3e-6 if ours.layers[0].self_attention.rotary else 1e-10
    assert_close(exact, model.double()(TOKENS).logits, rtol=0, atol=noise)


@torch.no_grad()
def test_a_batch_padded_on_the_left_gives_theirs(model: PreTrainedModel) -> None:
    ours, at = from_huggingface(model), positions(KEEP)
    right = model(TOKENS, attention_mask=KEEP, position_ids=at.clamp(min=0)).logits
    there = KEEP.bool()
    assert_close(ours(TOKENS, positions=at)[there], right[there], rtol=0, atol=1e-5)


@torch.no_grad()
def test_greedy_text_is_theirs(model: PreTrainedModel) -> None:
    model.generation_config.eos_token_id = None
    right = model.generate(TOKENS, attention_mask=KEEP, do_sample=False, max_new_tokens=10)
    ours, text = from_huggingface(model), TOKENS
    rows = [row[keep == 1] for row, keep in zip(TOKENS, KEEP, strict=True)]
    assert mh.generate(ours, rows, max_new_tokens=10).tolist() == right[:, 14:].tolist()
    caches, at = ours.new_caches(), positions(KEEP)
    for _ in range(10):
        new = text if text is TOKENS else text[:, -1:]
        logits = ours(new, positions=at if text is TOKENS else None, caches=caches, last_only=True)
        text = torch.cat((text, logits.argmax(dim=-1)), dim=1)
    assert text.tolist() == right.tolist()


@torch.no_grad()
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
@pytest.mark.parametrize("name", ["gpt2", "llama, grouped, llama 3", "qwen2"])
def test_a_saved_folder_is_read(name: str, shard: str, tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is (shard == "20KB")
    ours = from_huggingface(str(tmp_path))
    assert_close(ours(TOKENS), model(TOKENS).logits, rtol=0, atol=1e-5)
    half = from_huggingface(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


@torch.no_grad()
def test_an_old_folder_is_read_too(tmp_path: Path) -> None:
    """As the first GPT-2 and Llama 3.1 were published: no prefix, masks, rope_scaling."""
    model = theirs("gpt2")
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = {name.removeprefix("transformer."): x for name, x in load_file(path).items()}
    state |= {f"h.{i}.attn.bias": torch.ones(1, 1, 40, 40).tril() for i in range(3)}
    save_file(state, path)
    assert_close(from_huggingface(tmp_path)(TOKENS), model(TOKENS).logits, rtol=0, atol=1e-5)

    model = theirs("llama, grouped, llama 3")
    model.save_pretrained(tmp_path)
    numbers = json.loads((tmp_path / "config.json").read_text())
    scaling = numbers.pop("rope_parameters")
    numbers |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(numbers))
    assert_close(from_huggingface(tmp_path)(TOKENS), model(TOKENS).logits, rtol=0, atol=1e-5)


def test_weights_are_copies_that_learn() -> None:
    model = theirs("llama")
    before, ours = model(TOKENS).logits, from_huggingface(model)
    assert not ours.training
    ours(TOKENS).sum().backward()
    with torch.no_grad():
        for parameter in ours.parameters():
            assert parameter.grad is not None
            parameter.zero_()
    assert torch.equal(model(TOKENS).logits, before)


def test_what_is_no_model_of_ours_is_named(tmp_path: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    small = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    with pytest.raises(OptionError, match=r"one of gpt2, llama, mistral, qwen2; got .*bert"):
        from_huggingface(BertModel(small))
    with pytest.raises(OptionError, match="must be one of transformers, with a config; got Linear"):
        from_huggingface(torch.nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"a checkpoint must hold config\.json; got"):
        from_huggingface(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json must hold an object"):
        from_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "rule"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act must be 'silu'; got hidden_act='gelu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias must be False; got mlp_bias=True"),
        ("llama", rope("longrope"), "rope_type must be default, linear, dynamic, llama3 or yarn"),
        ("llama", rope("default", partial_rotary_factor=0.5), "partial_rotary_factor must be 1.0"),
        ("llama", rope("yarn", factor=4.0, mscale=1.0), "mscale must be None; got mscale=1.0"),
        ("llama", rope("linear"), "a config must have factor; got one without"),
        ("llama", rope("llama3", factor=8.0), "a config must have low_freq_factor; got one"),
        ("llama", {"hidden_size": None}, "a config must have hidden_size; got one without"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window must be False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function must be one of gelu_new"),
    ],
)
def test_options_that_a_decoder_has_not_are_refused(
    family: str, changes: dict[str, object], rule: str
) -> None:
    numbers = {**theirs(family).config.to_dict(), **changes}
    with pytest.raises(OptionError, match=rule):
        FAMILIES[family].config(numbers)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    theirs("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    for changed, rule in [
        ({**state, "score.weight": torch.ones(2)}, r"got 1 unknown: score\.weight"),
        ({k: x for k, x in state.items() if "norm" not in k}, r"got 7 missing: layers\.0\."),
        (
            {**state, "model.norm.weight": torch.ones(3)},
            "must have the shapes .* size mismatch for",
        ),
    ]:
        save_file(changed, path)
        with pytest.raises(CheckpointError, match=rule):
            from_huggingface(tmp_path)
    path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="weights must be whole safetensors files"):
        from_huggingface(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"must hold model\.safetensors or"):
        from_huggingface(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"index\.json must hold a weight_map; got"):
        from_huggingface(tmp_path)


def test_presets_are_what_configs_of_their_models_say() -> None:
    """The numbers of meta-llama/Llama-3.2-1B and Qwen/Qwen2.5-0.5B, as published."""
    llama = LlamaConfig(
        **{"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192},
        **{"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "head_dim": 64},
        rope_parameters={
            **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0},
            **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        },
    )
    qwen = Qwen2Config(
        **{"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864},
        **{"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
        **{"rms_norm_eps": 1e-6, "tie_word_embeddings": True},
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    for config, name in ((llama, "llama-3.2-1b"), (qwen, "qwen2.5-0.5b"), (GPT2Config(), "gpt2")):
        found = FAMILIES[config.model_type].config(config.to_dict())
        assert {**vars(found), "head_dim": None} == vars(mh.DecoderConfig.preset(name))
