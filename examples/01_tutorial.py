"""The two checks that tutorials end with: shapes and gradients, then a heatmap.

    python examples/01_tutorial.py [FOLDER]

With FOLDER, and matplotlib installed, the heatmap becomes FOLDER/weights.png; else it is printed.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from manyheads.errors import MissingExtraError
from manyheads.lens import draw_heads
from manyheads.tutorial import MultiHeadAttention, PositionalEncoding

WORDS = ["the", "cat", "sat", "on", "the", "mat"]


def check_shapes_and_gradients() -> None:
    """Self-attention under a look-ahead mask, and a gradient for every weight."""
    batch, length, d_model, n_head = 2, 10, 512, 8
    x = torch.randn(batch, length, d_model)
    layer = MultiHeadAttention(d_model=d_model, n_head=n_head, dropout=0.1)
    mask = torch.tril(torch.ones(batch, length, length))  # 1 = may see

    output, weights = layer(x, x, x, mask)
    print("output ", tuple(output.shape))
    print("weights", tuple(weights.shape))
    assert output.shape == (batch, length, d_model)
    assert weights.shape == (batch, n_head, length, length)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(batch, n_head, length))
    assert weights.triu(1).eq(0).all(), "nobody sees the future"

    output.square().mean().backward()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())
    print("gradients reach all", len(list(layer.parameters())), "tensors of the layer")


def check_heatmap(folder: str | None) -> None:
    """Who looks at whom, one map for each head; rows ask, columns answer."""
    vocabulary = sorted(set(WORDS))
    embedding = torch.nn.Embedding(len(vocabulary), 64)
    ids = torch.tensor([[vocabulary.index(word) for word in WORDS]])
    x = PositionalEncoding(64, dropout=0.0)(embedding(ids))
    layer = MultiHeadAttention(d_model=64, num_heads=4).eval()
    with torch.no_grad():
        _, weights = layer(x, x, x)
    try:
        if folder is None:
            print(in_text(weights[0, 0]))
        else:
            path = Path(folder) / "weights.png"
            draw_heads({"self-attention": weights[0]}, WORDS, WORDS, path=path)
            print("wrote", path)
    except MissingExtraError as error:
        print(error)
        print(in_text(weights[0, 0]))


def in_text(weights: Tensor) -> str:
    """One head's weights in shades of grey."""
    shades = " ░▒▓█"
    lines = []
    for word, row in zip(WORDS, weights / weights.max(), strict=True):
        shaded = (shades[round(share * (len(shades) - 1))] * 2 for share in row.tolist())
        lines.append(f"{word:>5} {''.join(shaded)}")
    return "head 0, untrained:\n" + "\n".join(lines)


if __name__ == "__main__":
    torch.manual_seed(0)
    check_shapes_and_gradients()
    check_heatmap(sys.argv[1] if len(sys.argv) > 1 else None)
