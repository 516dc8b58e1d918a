"""torch's own layers."""

import warnings

import torch
from tests.museum.exhibit import HEADS, LENGTH, UNKNOWN, WIDTH, Exhibit, stream
from torch import Tensor, nn

KEEP = torch.ones(2, LENGTH, dtype=torch.long)
KEEP[1, -3:] = 0
PAD = KEEP == 0


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
HEALTHY = [
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
