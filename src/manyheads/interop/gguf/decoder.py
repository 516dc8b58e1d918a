"""A model of the Llama family in a GGUF file becomes a `Decoder`."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.interop.gguf.file import GGUFFile, read_gguf
from manyheads.interop.weights import fill_decoder
from manyheads.models import Decoder, DecoderConfig

NAMES = {
    "token_embd": "embedding.tokens",
    "blk.{}.attn_norm": "layers.{}.attention_residual.norm",
    "blk.{}.attn_q": "layers.{}.self_attention.q_proj",
    "blk.{}.attn_k": "layers.{}.self_attention.k_proj",
    "blk.{}.attn_v": "layers.{}.self_attention.v_proj",
    "blk.{}.attn_output": "layers.{}.self_attention.out_proj",
    "blk.{}.ffn_norm": "layers.{}.feed_forward_residual.norm",
    "blk.{}.ffn_gate": "layers.{}.feed_forward.gate",
    "blk.{}.ffn_up": "layers.{}.feed_forward.up",
    "blk.{}.ffn_down": "layers.{}.feed_forward.down",
    "output_norm": "norm",
    "output": "output",
}


def from_gguf(
    path: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Decoder:
    """Our decoder with the weights of a GGUF file, which were rounded there and stay so.

    Args:
        path: The file, of the "llama" architecture: Llama, Mistral, SmolLM2.
        device: Where the weights go.
        dtype: Of what type they become; None = float32, which keeps what the file says.

    Raises:
        MissingExtraError: If the `gguf` library is missing.
        OptionError: If the model is of another architecture.
        CheckpointError: If the file or a weight is missing or damaged.
    """
    return decoder_of(read_gguf(path), device=device, dtype=dtype)


def decoder_of(
    file: GGUFFile,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Decoder:
    """As `from_gguf`, of a file that was opened."""
    config = _config(file)
    heads = {
        "attn_q": config.num_heads,
        "attn_k": config.num_kv_heads or config.num_heads,
    }

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name, weight in file.weights():
            kind = name.removesuffix(".weight").split(".")[-1]
            if kind in heads:
                weight = _halves(weight, heads[kind])
            yield name, weight.to(device=device, dtype=dtype)

    return fill_decoder(config, weights(), NAMES)


def _config(file: GGUFFile) -> DecoderConfig:
    kind = file["general.architecture"]
    if kind != "llama":
        raise OptionError(
            f"a GGUF file must be of the architecture llama; got {kind!r}. Take the model's "
            f"safetensors and from_huggingface."
        )
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise OptionError(
            f"llama.rope.scaling.type must be 'none'; got {scaling!r}. Take the model's "
            f"safetensors and from_huggingface, which knows the scalings."
        )
    heads = file["llama.attention.head_count"]
    names = {tensor.name for tensor in file.tensors}
    return DecoderConfig(
        vocab_size=len(file["tokenizer.ggml.tokens"]),
        d_model=file["llama.embedding_length"],
        num_heads=heads,
        num_kv_heads=file.metadata.get("llama.attention.head_count_kv", heads),
        head_dim=file.metadata.get("llama.rope.dimension_count"),
        num_layers=file["llama.block_count"],
        d_hidden=file["llama.feed_forward_length"],
        eps=file["llama.attention.layer_norm_rms_epsilon"],
        rotary_base=file.metadata.get("llama.rope.freq_base", 10000.0),
        tied="output.weight" not in names,
    )


def _halves(weight: Tensor, heads: int) -> Tensor:
    # The file's rotary pairs neighbours, (0, 1), (2, 3), ...; ours, as the model was trained, pairs
    # the halves of a head. (heads * pairs * 2, inputs) -> (heads * 2 * pairs, inputs)
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
