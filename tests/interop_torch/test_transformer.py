"""`Transformer` does what torch.nn.Transformer does between its embeddings and its logits."""

import pytest
import torch
from tests.interop_torch.twins import Twins, by_decoder_names, by_encoder_names, every_dtype
from torch import Tensor, nn

import manyheads as mh

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS = 13, 12, 3, 20, 2
SOURCE = torch.tensor([[3, 4, 5, 6, 2, 0], [7, 8, 2, 0, 0, 0], [9, 10, 11, 12, 3, 2]])
TARGET = torch.tensor([[1, 4, 5, 2], [1, 2, 0, 0], [1, 8, 9, 10]])


class Theirs(nn.Module):
    """nn.Transformer between our embeddings and our output matrix."""

    def __init__(self, ours: mh.Transformer, norm: str, activation: str) -> None:
        super().__init__()
        dtype = ours.output.weight.dtype
        self.core = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, dropout=0.0, activation=activation,
            norm_first=norm == "pre", batch_first=True, dtype=dtype,
        )  # fmt: skip
        if norm == "post":
            # Its stream is normalised already; torch does it once more, the paper does not.
            self.core.encoder.norm = self.core.decoder.norm = None
        self.embed_source, self.embed_target = ours.source_embedding, ours.target_embedding
        self.output = ours.output

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        decoded = self.core(
            self.embed_source(source),
            self.embed_target(target),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=source == 0,
            memory_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
        )
        return self.output(decoded)


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "core.encoder.layers.": "encoder.",
        "core.decoder.layers.": "decoder.",
        "core.encoder.norm.": "encoder_norm.",
        "core.decoder.norm.": "decoder_norm.",
        "embed_source.": "source_embedding.",
        "embed_target.": "target_embedding.",
    }
    result = {}
    for name, tensor in state.items():
        rename = by_decoder_names if "core.decoder" in name else by_encoder_names
        (name,) = rename({name: tensor})
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        result[name] = tensor
    return result


@every_dtype
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_whole_model_agrees(
    positions: str, activation: str, norm: str, dtype: torch.dtype
) -> None:
    config = mh.TransformerConfig(
        VOCABULARY, VOCABULARY, d_model=WIDTH, num_heads=HEADS, d_hidden=HIDDEN,
        num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, dropout=0.0, norm=norm,
        activation=activation, positions=positions, tied="none",
    )  # fmt: skip
    ours = mh.Transformer(config, dtype=dtype)
    pair = Twins(ours, Theirs(ours, norm, activation), renamed)
    pair.agree(
        lambda: pair.ours(SOURCE, TARGET), lambda: pair.theirs(SOURCE, TARGET), real=TARGET != 0
    )
