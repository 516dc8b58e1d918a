"""Our own layers and models: the healthy wing begins at home."""

from typing import Any

import torch
from tests.museum.exhibit import HEADS, LENGTH, UNKNOWN, WIDTH, WORDS, Exhibit, ids, stream
from torch import Tensor, nn

import manyheads as mh
from manyheads import tutorial
from manyheads.doctor import CacheFacts, Facts

KEEP = torch.tensor([[True] * LENGTH, [True] * (LENGTH - 3) + [False] * 3])


class Kept(nn.Module):
    """A layer of ours whose padding is an argument."""

    def __init__(self, layer: nn.Module, mask: mh.Mask | None = None) -> None:
        super().__init__()
        self.layer, self.mask = layer, mask

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        keep = mh.Padding(padding_mask)
        return self.layer(x, mask=keep if self.mask is None else self.mask & keep)


class Documents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = mh.MultiHeadAttention(WIDTH, HEADS)

    def forward(self, x: Tensor, document_ids: Tensor) -> Tensor:
        return self.attention(x, mask=mh.Causal() & mh.Documents(document_ids))


def layer(**options: Any) -> Any:
    return lambda: mh.MultiHeadAttention(WIDTH, HEADS, **options)


def transformer(**options: Any) -> Any:
    numbers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_hidden": 32, **options}
    config = mh.TransformerConfig(
        source_vocab=WORDS, target_vocab=WORDS, d_model=WIDTH, num_heads=HEADS, **numbers
    )
    return lambda: mh.Transformer(config)


def reorder(cache: mh.GrowingCache, index: Tensor) -> None:
    cache.reorder(index)


def ours(name: str, build: Any, *args: Any, facts: Facts = UNKNOWN, **kwargs: Any) -> Exhibit:
    return Exhibit(f"ours-{name}", build, args or (stream(),), kwargs, facts)


def decoder(**options: Any) -> Any:
    config = mh.DecoderConfig(
        vocab_size=WORDS, d_model=WIDTH, num_heads=HEADS, num_layers=2, d_hidden=48, **options
    )
    return lambda: mh.Decoder(config)


CACHES = CacheFacts(
    "caches",
    start=lambda: [mh.GrowingCache(), mh.GrowingCache()],
    reorder=lambda caches, index: [each.reorder(index) for each in caches] and caches,
)
CACHE = CacheFacts("cache", start=mh.GrowingCache, reorder=reorder)
REAL = Facts(real=True)
HALVES = (torch.arange(LENGTH) >= 6).long().expand(2, -1)

HEALTHY = [
    ours("layer", layer()),
    ours("causal", layer(), mask=mh.Causal()),
    ours("grouped-rotary", layer(num_kv_heads=2, rotary=mh.Rotary(6)), mask=mh.Causal()),
    ours("qk-norm", layer(qk_norm="rms", dropout=0.2)),
    ours("packed", layer(projections="packed"), mask=mh.Causal()),
    ours("cross", layer(), stream(), stream(7)),
    ours("window", layer(), mask=mh.Causal() & mh.Window(3), facts=Facts(causal=True, window=3)),
    ours("cache", layer(rotary=mh.Rotary(6)), mask=mh.Causal(),
         facts=Facts(causal=True, cache=CACHE)),
    ours("padding", lambda: Kept(mh.MultiHeadAttention(WIDTH, HEADS)), stream(), KEEP, facts=REAL),
    ours("causal-padding", lambda: Kept(mh.MultiHeadAttention(WIDTH, HEADS), mh.Causal()),
         stream(), KEEP, facts=REAL),
    ours("documents", Documents, stream(), HALVES),
    ours("prefix", layer(), mask=mh.Causal() | mh.Prefix(4),
         facts=Facts(causal="prefix", prefix=4)),
    ours("encoder-layer", lambda: mh.EncoderLayer(WIDTH, HEADS, 32)),
    ours("encoder-layer-padding", lambda: Kept(mh.EncoderLayer(WIDTH, HEADS, 32, norm="pre")),
         stream(), KEEP, facts=REAL),
    ours("decoder-layer", lambda: mh.DecoderLayer(WIDTH, HEADS, 32), stream(), stream(7)),
    ours("transformer", transformer(), ids(7), ids()),
    ours("transformer-rotary", transformer(positions="rotary", norm="pre"), ids(7), ids()),
    ours("latent", lambda: mh.LatentAttention(WIDTH, HEADS, 12, head_dim=6,
         rotary=mh.Rotary(4, pairs="interleaved")), mask=mh.Causal()),
    ours("differential", lambda: mh.DifferentialAttention(WIDTH, HEADS, depth=1),
         mask=mh.Causal()),
    ours("gpt2-style", decoder(norm="layer", positions="learned", bias=True, max_length=64), ids(),
         facts=Facts(cache=CACHES)),
    ours("llama-style", decoder(norm="rms", positions="rotary", num_kv_heads=2), ids(),
         facts=Facts(cache=CACHES)),
    ours("tutorial-layer", lambda: tutorial.TransformerEncoderLayer(WIDTH, HEADS, 32)),
    ours("tutorial-attention", lambda: tutorial.MultiHeadAttention(WIDTH, HEADS), stream(),
         stream(7), stream(7) * 0.9),
    ours("alibi", layer(), bias=mh.ALiBi(HEADS), mask=mh.Causal()),
]  # fmt: skip

BROKEN: list[Exhibit] = []
