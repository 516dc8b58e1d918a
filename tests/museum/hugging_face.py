"""Hugging Face's models with random weights."""

import warnings
from typing import Any

import torch
from tests.museum.exhibit import HEADS, LENGTH, UNKNOWN, WIDTH, WORDS, Exhibit, ids
from torch import nn

from manyheads.doctor import Facts

KEEP = torch.ones(2, LENGTH, dtype=torch.long)
KEEP[1, -3:] = 0

SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 32,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 6}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": WIDTH, "d_kv": 6, "d_ff": 32, "num_layers": 1, "num_heads": HEADS}
BART = {
    "d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip
MARIAN = {**BART, "decoder_start_token_id": 3}
WHISPER = {"num_mel_bins": 8, "max_source_positions": 15, "decoder_start_token_id": 3}
IMAGE = {"image_size": 18, "patch_size": 6}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": WIDTH, "depths": [2, 2],
        "num_heads": [2, 4], "window_size": 4}  # fmt: skip
CLIP = {
    "text_config": {**SIZES, **SPECIAL},
    "vision_config": {**SIZES, **IMAGE},
    "projection_dim": 8,
}
MPT = {"d_model": WIDTH, "n_heads": HEADS, "n_layers": 2, "max_seq_len": 64}


def hugging(name: str, **options: Any) -> Any:
    """A factory of a model by the name of its class."""

    def build() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind(kind.config_class(**options)).eval()

    return build


def shown(
    name: str, options: dict[str, Any], code: str = "", facts: Facts = UNKNOWN, **given: Any
) -> Exhibit:
    return Exhibit(name, hugging(name, **options), (), given, facts, code, "transformers")


def reads(name: str, code: str = "", **options: Any) -> Exhibit:
    """An encoder of text."""
    sizes = options or SIZES
    return shown(name, {**sizes, **SPECIAL}, code, input_ids=ids(), attention_mask=KEEP)


def writes(name: str, **options: Any) -> Exhibit:
    """A causal language model."""
    return shown(name, SIZES | SPECIAL | options, input_ids=ids())


def translates(name: str, code: str = "", **options: Any) -> Exhibit:
    """An encoder and a decoder."""
    sizes = {"vocab_size": WORDS, **SPECIAL, **options}
    return shown(name, sizes, code, input_ids=ids(7), decoder_input_ids=ids(9))


def sees(name: str, code: str = "", side: int = 18, **options: Any) -> Exhibit:
    """A reader of images."""
    image = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(7))
    return shown(name, options or {**SIZES, **IMAGE}, code, pixel_values=image)


HEALTHY = [
    reads("BertModel"),
    reads("RobertaModel"),
    reads("DistilBertModel", vocab_size=WORDS, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=32),
    reads("ElectraModel", **SIZES, embedding_size=WIDTH),
    reads("AlbertModel", **SIZES, embedding_size=WIDTH),
    reads("MPNetModel"),
    reads("XLMRobertaModel"),
    reads("ModernBertModel", **SIZES, local_attention=4),
    writes("GPT2LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=HEADS),
    writes("GPTNeoForCausalLM", num_layers=2, num_heads=HEADS, window_size=4,
           attention_types=[[["global", "local"], 1]]),
    writes("GPTJForCausalLM", n_embd=WIDTH, n_layer=2, n_head=HEADS, rotary_dim=4),
    writes("GPTNeoXForCausalLM"),
    writes("GPTBigCodeForCausalLM", n_embd=WIDTH, n_layer=2, n_head=HEADS),
    writes("OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=WIDTH),
    writes("BloomForCausalLM", n_layer=2, n_head=HEADS),
    writes("FalconForCausalLM"),
    writes("MptForCausalLM", **MPT),
    writes("LlamaForCausalLM", **GROUPED),
    writes("MistralForCausalLM", **GROUPED, sliding_window=4),
    writes("MixtralForCausalLM", **GROUPED, num_local_experts=2, sliding_window=None),
    writes("Qwen2ForCausalLM", num_key_value_heads=2),
    writes("Qwen3ForCausalLM", **GROUPED),
    writes("GemmaForCausalLM", **GROUPED),
    writes("Gemma2ForCausalLM", **GROUPED, sliding_window=4, query_pre_attn_scalar=6),
    writes("Gemma3ForCausalLM", **GROUPED, sliding_window=4, query_pre_attn_scalar=6),
    writes("PhiForCausalLM", hidden_size=32),
    writes("Phi3ForCausalLM", num_key_value_heads=2),
    writes("CohereForCausalLM", num_key_value_heads=2),
    writes("StableLmForCausalLM", num_key_value_heads=2),
    writes("Starcoder2ForCausalLM", num_key_value_heads=2),
    writes("Olmo2ForCausalLM", num_key_value_heads=2),
    writes("SmolLM3ForCausalLM", num_key_value_heads=2),
    writes("GraniteForCausalLM", num_key_value_heads=2),
    translates("T5ForConditionalGeneration", **T5),
    translates("LongT5ForConditionalGeneration", **T5, local_radius=4),
    translates("BartForConditionalGeneration", **BART),
    translates("MBartForConditionalGeneration", **BART),
    translates("PegasusForConditionalGeneration", **BART),
    translates("MarianMTModel", **MARIAN),
    shown("CLIPTextModel", {**SIZES, **SPECIAL}, input_ids=ids()),
    sees("CLIPVisionModel"),
    sees("ViTModel"),
    sees("DeiTModel"),
    sees("BeitModel"),
    sees("SiglipVisionModel"),
    sees("SwinModel", side=32, **SWIN),
    sees("Swinv2Model", side=32, **SWIN),
    shown("CLIPModel", CLIP, facts=Facts(out="text_embeds"), input_ids=ids(),
          pixel_values=torch.randn(2, 3, 18, 18)),
    shown("WhisperModel", {"vocab_size": WORDS, **BART, **WHISPER, **SPECIAL},
          input_features=torch.randn(2, 8, 30), decoder_input_ids=ids(7)),
    shown("Wav2Vec2Model", {**SIZES, "conv_dim": [8, 8], "conv_kernel": [10, 3],
          "conv_stride": [5, 2], "num_feat_extract_layers": 2, "feat_extract_norm": "layer",
          "do_stable_layer_norm": True, "num_conv_pos_embeddings": 4,
          "num_conv_pos_embedding_groups": 2}, input_values=torch.randn(2, 130)),
]  # fmt: skip
