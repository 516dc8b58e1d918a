"""Other people's modules: healthy ones, and those whose faults are publicly known."""

import warnings
from typing import Any

import torch
from tests.museum.exhibit import HEADS, LENGTH, UNKNOWN, WIDTH, WORDS, Exhibit, ids, stream
from torch import Tensor, nn

from manyheads.doctor import Facts

KEEP = torch.ones(2, LENGTH, dtype=torch.long)
KEEP[1, -3:] = 0
PAD = KEEP == 0


# torch


class TorchCausal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0]


def encoder() -> nn.Module:
    made = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    return nn.TransformerEncoder(made, 2, enable_nested_tensor=False)


def seq2seq() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Transformer(WIDTH, HEADS, 1, 1, 32)


X = stream()
TORCH = [
    Exhibit("torch-attention", lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
            (X, X, X)),
    Exhibit("torch-attention-lengths", lambda: nn.MultiheadAttention(WIDTH, HEADS), (X, X, X)),
    Exhibit("torch-cross", lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
            (X, stream(7), stream(7) * 0.9)),
    Exhibit("torch-causal", TorchCausal),
    Exhibit("torch-encoder-layer", lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 32,
            batch_first=True, norm_first=True)),
    Exhibit("torch-encoder", encoder),
    Exhibit("torch-decoder-layer", lambda: nn.TransformerDecoderLayer(WIDTH, HEADS, 32,
            batch_first=True), (X, stream(7))),
    Exhibit("torch-transformer", seq2seq, (stream(5), stream(5))),
]  # fmt: skip

BROKEN = [
    Exhibit("torch-attention", lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
            (X, X, X), {"key_padding_mask": PAD}, UNKNOWN, "empty_row_nan"),
    Exhibit("torch-encoder", encoder, (X,), {"src_key_padding_mask": PAD}, UNKNOWN,
            "empty_row_nan"),
]  # fmt: skip


# Hugging Face, with random weights

SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 32,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": WIDTH, "d_kv": 6, "d_ff": 32, "num_layers": 1, "num_heads": HEADS}
BART = {
    "d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip
WHISPER = {"num_mel_bins": 8, "max_source_positions": 15}
IMAGE = {"image_size": 18, "patch_size": 6}


def hugging(name: str, **options: Any) -> Any:
    """A factory of a model by the name of its class."""

    def build() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind(kind.config_class(**options)).eval()

    return build


def reads(name: str, **options: Any) -> Exhibit:
    given = {"input_ids": ids(), "attention_mask": KEEP}
    sizes = options or SIZES
    return Exhibit(name, hugging(name, **sizes, **SPECIAL), (), given)


def writes(name: str, **options: Any) -> Exhibit:
    given = {"input_ids": ids()}
    return Exhibit(name, hugging(name, **(SIZES | SPECIAL | options)), (), given)


def translates(name: str, **options: Any) -> Exhibit:
    given = {"input_ids": ids(7), "decoder_input_ids": ids(9)}
    return Exhibit(name, hugging(name, vocab_size=WORDS, **SPECIAL, **options), (), given)


HUGGING_FACE = [
    reads("BertModel"),
    reads("RobertaModel"),
    reads("DistilBertModel", vocab_size=WORDS, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=32),
    reads("ElectraModel", **SIZES, embedding_size=WIDTH),
    writes("GPT2LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=HEADS),
    writes("LlamaForCausalLM", num_key_value_heads=2),
    writes("Qwen2ForCausalLM", num_key_value_heads=2),
    writes("MistralForCausalLM", num_key_value_heads=2, sliding_window=4),
    writes("GemmaForCausalLM", num_key_value_heads=2, head_dim=6),
    writes("GPTNeoXForCausalLM"),
    writes("OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=WIDTH),
    translates("T5ForConditionalGeneration", **T5),
    translates("BartForConditionalGeneration", **BART),
    Exhibit("CLIPTextModel", hugging("CLIPTextModel", **SIZES, **SPECIAL), (),
            {"input_ids": ids()}),
    Exhibit("ViTModel", hugging("ViTModel", **SIZES, **IMAGE), (),
            {"pixel_values": torch.randn(2, 3, 18, 18)}),
    Exhibit("WhisperModel", hugging("WhisperModel", vocab_size=WORDS, **BART, **WHISPER, **SPECIAL,
            decoder_start_token_id=3), (),
            {"input_features": torch.randn(2, 8, 30), "decoder_input_ids": ids(7)}),
]  # fmt: skip


# x-transformers and local-attention


def x_transformers(kind: str, **options: Any) -> Any:
    def build() -> nn.Module:
        import x_transformers

        layers = getattr(x_transformers, kind)(
            dim=WIDTH, depth=1, heads=HEADS, attn_dim_head=6, **options
        )
        return x_transformers.TransformerWrapper(
            num_tokens=WORDS, max_seq_len=64, attn_layers=layers
        )

    return build


def local(**options: Any) -> Any:
    def build() -> nn.Module:
        from local_attention import LocalMHA

        return LocalMHA(dim=WIDTH, window_size=4, heads=HEADS, dim_head=6, **options)

    return build


LUCID = [
    Exhibit("x-transformers-decoder", x_transformers("Decoder"), (ids(),), {},
            Facts(causal=True)),
    Exhibit("x-transformers-rotary", x_transformers("Decoder", rotary_pos_emb=True), (ids(),), {},
            Facts(causal=True)),
    Exhibit("x-transformers-encoder", x_transformers("Encoder"), (ids(),), {"mask": KEEP.bool()},
            Facts(padding="mask", real=True)),
    Exhibit("local-attention", local(causal=True), (stream(12),), {}, Facts(causal=True)),
    Exhibit("local-attention-both", local(causal=False), (stream(12),)),
]  # fmt: skip

HEALTHY = [*TORCH, *HUGGING_FACE, *LUCID]
