"""Hugging Face models, watched while they run their own kernel, beside twins that write it out."""

import copy
from threading import Event, Thread

import pytest
import torch
import transformers as hf
from torch import Tensor

import manyheads as mh

WORDS = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
PAIR = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KEEP = torch.arange(7) < torch.tensor([[7], [4]])


def text() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 50, (2, 7)), "attention_mask": KEEP.long()}


def texts() -> dict[str, Tensor]:
    return {**text(), "decoder_input_ids": torch.randint(3, 50, (2, 5))}


def picture(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def sound() -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(2, 8, 20),
        "decoder_input_ids": torch.randint(3, 50, (2, 5)),
    }


def waves() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 200)}


GROUPED = {**WORDS, **SPECIAL, "num_key_value_heads": 2}
BY_TURNS = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "BERT": (hf.BertModel, hf.BertConfig(**WORDS), text),
    "RoBERTa": (hf.RobertaModel, hf.RobertaConfig(**WORDS, pad_token_id=1), text),
    "ALBERT": (hf.AlbertModel, hf.AlbertConfig(**WORDS, embedding_size=16), text),
    "DistilBERT": (
        hf.DistilBertModel,
        hf.DistilBertConfig(
            vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64, sep_token_id=2
        ),
        text,
    ),
    "GPT-2": (
        hf.GPT2Model,
        hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, **SPECIAL),
        text,
    ),
    "T5": (
        hf.T5Model,
        hf.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        texts,
    ),
    "BART": (hf.BartModel, hf.BartConfig(**PAIR, max_position_embeddings=64), texts),
    "ViT": (
        hf.ViTModel,
        hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
        ),
        lambda: picture(16),
    ),
    "Swin": (
        hf.SwinModel,
        hf.SwinConfig(image_size=32, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
        lambda: picture(32),
    ),
    "CLIP": (hf.CLIPTextModel, hf.CLIPTextConfig(**WORDS, **SPECIAL), text),
    "Whisper": (
        hf.WhisperModel,
        hf.WhisperConfig(
            **PAIR,
            **SPECIAL,
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=20,
            decoder_start_token_id=1,
        ),
        sound,
    ),
    "Conformer": (
        hf.Wav2Vec2ConformerModel,
        hf.Wav2Vec2ConformerConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            conv_depthwise_kernel_size=3,
        ),
        waves,
    ),
    "Llama": (hf.LlamaModel, hf.LlamaConfig(**GROUPED), text),
    "Qwen2": (hf.Qwen2Model, hf.Qwen2Config(**GROUPED), text),
    "Qwen3": (hf.Qwen3Model, hf.Qwen3Config(**GROUPED, head_dim=8), text),
    "Mistral": (hf.MistralModel, hf.MistralConfig(**GROUPED, sliding_window=3), text),
    # A window and a view of all by turns; scales, norms of values and gates that mislead.
    "Gemma-3": (
        hf.Gemma3TextModel,
        hf.Gemma3TextConfig(**GROUPED, **BY_TURNS, head_dim=8),
        text,
    ),
    "Gemma-4": (
        hf.Gemma4TextModel,
        hf.Gemma4TextConfig(**GROUPED, **BY_TURNS, head_dim=8),
        text,
    ),
    "Qwen3-Next": (
        hf.Qwen3NextModel,
        hf.Qwen3NextConfig(
            **{**GROUPED, "num_hidden_layers": 3},
            head_dim=8,
            layer_types=["full_attention", "linear_attention", "full_attention"],
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        text,
    ),
    # These have no fused form, for a softcap, sinks, and arithmetic of their own.
    "Gemma-2": (hf.Gemma2Model, hf.Gemma2Config(**GROUPED, head_dim=8), text),
    "GPT-OSS": (
        hf.GptOssModel,
        hf.GptOssConfig(
            **GROUPED, head_dim=8, num_local_experts=2, num_experts_per_tok=1, rope_parameters=None
        ),
        text,
    ),
    "BLOOM": (
        hf.BloomModel,
        hf.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4, **SPECIAL),
        text,
    ),
    "XLNet": (
        hf.XLNetModel,
        hf.XLNetConfig(vocab_size=50, d_model=32, n_layer=2, n_head=4, d_inner=64),
        text,
    ),
    "BigBird": (hf.BigBirdModel, hf.BigBirdConfig(**WORDS, attention_type="original_full"), text),
    "DeBERTa-v2": (
        hf.DebertaV2Model,
        hf.DebertaV2Config(**WORDS, relative_attention=True, pos_att_type=["p2c", "c2p"]),
        text,
    ),
}


def twins(name: str) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, Tensor]]:
    kind, config, inputs = MODELS[name]
    fused = "sdpa" if kind._supports_sdpa else "eager"
    watched = kind._from_config(copy.deepcopy(config), attn_implementation=fused).eval()
    written = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    written.load_state_dict(watched.state_dict())
    return watched, written, inputs()


def own_weights(outputs: object) -> list[Tensor]:
    """The weights that a model gives itself, encoder first, then self and cross by turns."""
    own = [getattr(outputs, n, None) or () for n in ("attentions", "encoder_attentions")]
    pairs = zip(
        getattr(outputs, "decoder_attentions", None) or (),
        getattr(outputs, "cross_attentions", None) or (),
        strict=True,
    )
    return [*own[0], *own[1], *(weights for pair in pairs for weights in pair)]


def real(weights: Tensor) -> Tensor:
    """Without padded queries, of which each way of attending makes what it likes."""
    return weights.masked_fill(~KEEP[:, None, :, None], 0) if weights.shape[2] == 7 else weights


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_weights_are_those_that_the_eager_twin_gives(name):
    watched, written, inputs = twins(name)
    plain = watched(**inputs)[0]
    with mh.probe.watch(watched) as calls:
        assert watched(**inputs)[0].equal(plain)
    right = own_weights(written(**inputs, output_attentions=True))
    assert len(calls) == len(right) > 1
    for call, weights in zip(calls, right, strict=True):
        torch.testing.assert_close(real(call.weights()), real(weights), rtol=0, atol=1e-5)
        shares = real(weights)
        left = (1 - shares.sum(dim=-1)).clamp(min=0)  # what a sink takes
        right_entropy = torch.special.entr(shares).sum(dim=-1) + torch.special.entr(left)
        found = real(call.entropy()[..., None])[..., 0]
        torch.testing.assert_close(found, right_entropy, rtol=0, atol=1e-4)


@torch.no_grad()
def test_grouped_keys_are_kept_once_and_places_are_named():
    watched, _, inputs = twins("Llama")
    with mh.probe.watch(watched, layers="layers.1") as calls:
        watched(**inputs)
    assert [call.where for call in calls] == ["layers.1.self_attn"]
    assert calls[0].call.k.shape[1] == 2


@torch.no_grad()
def test_generation_with_a_cache_is_seen_step_by_step():
    config = hf.LlamaConfig(**GROUPED)
    model = hf.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    prompt = torch.randint(3, 50, (1, 6))
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    plain = model.generate(prompt, **options)
    with mh.probe.watch(model, layers="model.layers.0") as calls:
        assert model.generate(prompt, **options).equal(plain)
    sizes = [(call.call.q.shape[2], call.call.k.shape[2]) for call in calls]
    assert sizes == [(6, 6), (1, 7), (1, 8), (1, 9)]
    model.set_attn_implementation("eager")
    right = model(plain[:, :-1], output_attentions=True).attentions[0]
    for call, (rows, keys) in zip(calls, sizes, strict=True):
        written = right[:, :, keys - rows : keys, :keys]
        torch.testing.assert_close(call.weights(), written, rtol=0, atol=1e-5)


WINDOWS = {**GROUPED, "sliding_window": 4}
WRITERS = {
    "Llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**GROUPED)),
    "GPT-2": (
        hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, **SPECIAL)
    ),
    "Mistral": (hf.MistralForCausalLM, hf.MistralConfig(**WINDOWS)),
    "Gemma-2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(**WINDOWS, head_dim=8)),
    "Gemma-3": (
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig(**WINDOWS, head_dim=8, layer_types=BY_TURNS["layer_types"]),
    ),
}  # fmt: skip
CACHES = {
    "dynamic": lambda config: hf.DynamicCache(config=config),
    "static": lambda config: hf.StaticCache(config, max_cache_len=20),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_each_step_of_generation_is_seen_with_its_weights_at_its_place(name, cache):
    kind, config = WRITERS[name]
    fused = "sdpa" if kind._supports_sdpa else "eager"
    model = kind._from_config(copy.deepcopy(config), attn_implementation=fused).eval()
    written = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    written.load_state_dict(model.state_dict())
    keep = torch.arange(7) >= torch.tensor([[0], [3]])
    options = {
        "inputs": torch.randint(3, 50, (2, 7)), "attention_mask": keep.long(), "max_new_tokens": 6,
        "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True,
        "output_attentions": True,
    }  # fmt: skip
    right = written.generate(**options, cache=CACHES[cache](written.config))
    options["output_attentions"] = False
    plain = model.generate(**options, cache=CACHES[cache](model.config))
    with mh.probe.watch(model) as calls:
        again = model.generate(**options, cache=CACHES[cache](model.config))
    assert plain.sequences.equal(again.sequences) and plain.sequences.equal(right.sequences)
    steps = [(at, weights) for at, step in enumerate(right.attentions) for weights in step]
    assert len(calls) == len(steps) == 12
    for call, (at, weights) in zip(calls, steps, strict=True):
        first = at == 0
        real = keep[:, None, :, None] if first else torch.ones(2, 1, 1, 1, dtype=torch.bool)
        found = call.weights()
        torch.testing.assert_close(found * real, weights * real, rtol=0, atol=1e-5)
        # A row's own token is the last that it sees: nothing behind it, in it and the one before.
        own = 7 if first else int(weights[0, 0, 0].nonzero()[-1])
        rows = range(7) if first else [own]
        for back in (0, 1, -1):
            mass = call.mass_behind(back)
            for row, place in enumerate(rows):
                key = place - back
                there = found[:, :, row, key] if 0 <= key < found.shape[3] else 0 * mass[..., row]
                counts = real[:, :, row if first else 0, 0]
                torch.testing.assert_close(
                    mass[..., row] * counts, there * counts, rtol=0, atol=1e-6
                )


@torch.no_grad()
def test_the_librarys_functions_come_back_whatever_happens():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.bert import modeling_bert

    watched, _, inputs = twins("BERT")
    before = ALL_ATTENTION_FUNCTIONS["sdpa"], modeling_bert.eager_attention_forward
    with pytest.raises(ZeroDivisionError), mh.probe.watch(watched):
        watched(**inputs)
        raise ZeroDivisionError
    assert before == (ALL_ATTENTION_FUNCTIONS["sdpa"], modeling_bert.eager_attention_forward)


@torch.no_grad()
def test_another_model_of_the_same_kind_is_left_alone():
    watched, other, inputs = twins("BERT")
    with mh.probe.watch(watched) as calls:
        watched(**inputs)
        other(**inputs)
    assert len(calls) == 2


@torch.no_grad()
def test_both_maps_of_differential_heads_are_seen_as_they_are_and_not_their_difference():
    config = hf.DiffLlamaConfig(**GROUPED, head_dim=8)
    watched = hf.DiffLlamaModel._from_config(config, attn_implementation="sdpa").eval()
    written = hf.DiffLlamaModel._from_config(config, attn_implementation="eager").eval()
    written.load_state_dict(watched.state_dict())
    inputs = text()
    with mh.probe.watch(watched) as calls:
        watched(**inputs)
    right = own_weights(written(**inputs, output_attentions=True))
    # Two calls a layer, one for each half of the values, by the same weights.
    assert [call.where for call in calls] == [f"layers.{i}.self_attn" for i in (0, 0, 1, 1)]
    for place, call in enumerate(calls):
        torch.testing.assert_close(real(call.weights()), real(right[place // 2]), rtol=0, atol=1e-5)


@torch.no_grad()
def test_bf16_is_seen_within_its_own_digits():
    watched, written, inputs = twins("Llama")
    watched, written = watched.bfloat16(), written.bfloat16()
    with mh.probe.watch(watched) as calls:
        watched(**inputs)
    right = own_weights(written(**inputs, output_attentions=True))
    for call, weights in zip(calls, right, strict=True):
        torch.testing.assert_close(real(call.weights()), real(weights.float()), rtol=0, atol=2e-2)


def test_threads_that_watch_at_once_leave_the_library_as_it_was() -> None:
    from transformers.models.bert import modeling_bert as file

    begun, end = Event(), Event()
    eager, sdpa = file.eager_attention_forward, hf.AttentionInterface()["sdpa"]
    model = hf.BertModel(hf.BertConfig(**WORDS)).eval()

    def watch() -> None:
        with mh.probe.watch(model):
            begun.set()
            model(**text())
            end.wait()

    thread = Thread(target=watch)
    thread.start()
    begun.wait()
    with mh.probe.watch(model) as calls:
        end.set()
        thread.join()  # who came first leaves first
        model(**text())
    assert [call.source for call in calls] == ["huggingface"] * 2
    assert file.eager_attention_forward is eager
    assert hf.AttentionInterface()["sdpa"] is sdpa
