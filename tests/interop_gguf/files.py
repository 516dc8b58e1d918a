"""A small GGUF file, as llama.cpp's converter writes one."""

from pathlib import Path

import torch
from gguf import GGUFWriter
from torch import Tensor

import manyheads as mh

CONFIG = mh.DecoderConfig(
    **{"vocab_size": 261, "d_model": 32, "num_heads": 4, "num_kv_heads": 2, "num_layers": 2},
    **{"d_hidden": 48, "eps": 1e-3, "rotary_base": 5e3},
)
# Ours are on the right; written out here, so that a slip in the loader's table shows.
PARTS = {
    "attn_norm": "attention_residual.norm",
    "attn_q": "self_attention.q_proj",
    "attn_k": "self_attention.k_proj",
    "attn_v": "self_attention.v_proj",
    "attn_output": "self_attention.out_proj",
    "ffn_norm": "feed_forward_residual.norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l"]


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """The rows of each head as the file has them: 0, n, 1, n + 1, ... of its 2 n."""
    rows = []
    for head in weight.chunk(heads):
        first, second = head.chunk(2)
        for pair in zip(first, second, strict=True):
            rows += pair
    return torch.stack(rows)


def alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write(path: Path, decoder: mh.Decoder, **changes: object) -> Path:
    """Write a decoder and a tokenizer into a file; changes replace what it says of itself."""
    said = {
        "architecture": "llama",
        "pre": "smollm",
        "scaling": None,
        "more": None,
        "tied": False,
    } | changes
    writer = GGUFWriter(path, str(said["architecture"]))
    config = decoder.config
    writer.add_uint32("llama.embedding_length", config.d_model)
    writer.add_uint32("llama.block_count", config.num_layers)
    writer.add_uint32("llama.feed_forward_length", config.d_hidden)
    writer.add_uint32("llama.attention.head_count", config.num_heads)
    writer.add_uint32("llama.attention.head_count_kv", config.num_kv_heads or config.num_heads)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", config.eps)
    writer.add_float32("llama.rope.freq_base", config.rotary_base)
    if said["scaling"] is not None:
        writer.add_string("llama.rope.scaling.type", str(said["scaling"]))
    tokens = [*SPECIAL, *alphabet(), "he", "ll"]
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", str(said["pre"]))
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [3] * 3 + [1] * (len(tokens) - 3))
    writer.add_array("tokenizer.ggml.merges", MERGES)
    weights = {"token_embd": decoder.embedding.tokens.weight, "output_norm": decoder.norm.weight}
    if not said["tied"]:
        assert decoder.output is not None
        weights["output"] = decoder.output.weight
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for index, layer in enumerate(decoder.layers):
        for theirs, ours in PARTS.items():
            weight = layer.get_submodule(ours).weight
            weight = neighbours(weight, heads[theirs]) if theirs in heads else weight
            weights[f"blk.{index}.{theirs}"] = weight
    if said["more"] is not None:
        weights[str(said["more"])] = torch.ones(4)
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
