"""Our own layers and models: the healthy wing begins at home."""

from typing import Any

import torch
from tests.museum.exhibit import HEADS, LENGTH, UNKNOWN, WIDTH, WORDS, Exhibit, ids, stream
from torch import Tensor, nn

import manyheads as mh
from manyheads import tutorial
from manyheads.doctor import CacheFacts, Facts

CAUSAL = mh.Causal()
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


class Biased(nn.Module):
    """A layer of ours and a bias of positions, which is learned beside it."""

    def __init__(self, bias: nn.Module) -> None:
        super().__init__()
        self.attention, self.position_bias = mh.MultiHeadAttention(WIDTH, HEADS), bias

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, bias=self.position_bias, mask=mh.Causal())


class Approximate(nn.Module):
    """Heads of our own projections through a function that approximates attention."""

    def __init__(self, function: Any, mask: mh.Mask | None = CAUSAL) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function, self.mask = function, mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        mixed = self.function(q, k, v) if self.mask is None else self.function(q, k, v, self.mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


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
CACHE_KINDS = {
    "fixed": lambda: mh.FixedCache(64),
    "paged": mh.PagedCache,
}
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
    ours("tutorial-scores", lambda: tutorial.ScaledDotProductAttention(WIDTH), stream(),
         stream(7), stream(7) * 0.9),
    ours("alibi", layer(), bias=mh.ALiBi(HEADS), mask=mh.Causal()),
    ours("t5-bias", lambda: Biased(mh.T5Bias(HEADS, num_buckets=8, max_distance=16))),
    ours("transformer-xl-bias", lambda: Biased(mh.TransformerXLBias(HEADS, 6, WIDTH))),
    ours("shaw", lambda: Biased(mh.ShawBias(HEADS, 6, max_distance=4))),
    ours("gate", layer(gate="channel"), mask=mh.Causal()),
    ours("value-width", layer(d_context=10, d_value=14), stream(), stream(7, width=10),
         stream(7, width=14)),
    ours("sink-logits", layer(scores=mh.Scores(sinks=True)), mask=mh.Causal()),
    ours("softcap", layer(scores=mh.Scores(softcap=5.0)), mask=mh.Causal()),
    ours("longformer", layer(), mask=mh.Window(3) | mh.Global(0)),
    ours("bigbird", layer(), mask=mh.Window(3) | mh.Global(0) | mh.RandomBlocks(1, block=2,
         length=LENGTH)),
    ours("dilated", layer(), mask=mh.Causal() & mh.Dilated(3, step=2)),
    ours("linear", lambda: Approximate(mh.linear_attention), facts=Facts(causal=True)),
    ours("nystrom", lambda: Approximate(mh.nystrom_attention, mask=None)),
    ours("feed-forward", lambda: mh.FeedForward(WIDTH, 32)),
    ours("encoder-layer-grouped", lambda: mh.EncoderLayer(WIDTH, HEADS, 32, num_kv_heads=2,
         rotary=mh.Rotary(6))),
    ours("decoder-layer-pre", lambda: mh.DecoderLayer(WIDTH, HEADS, 32, norm="pre",
         rotary=mh.Rotary(6)), stream(), stream(7)),
    ours("decoder-window", decoder(window=3), ids(), facts=Facts(window=None, causal=True)),
    ours("decoder-yarn", decoder(rotary_scaling=mh.YaRN(4.0, original_length=16)), ids()),
    *(ours(f"cache-{name}", layer(rotary=mh.Rotary(6)), mask=mh.Causal(),
           facts=Facts(causal=True, cache=CacheFacts("cache", start=start, reorder=reorder)))
      for name, start in CACHE_KINDS.items()),
]  # fmt: skip

BROKEN: list[Exhibit] = []
