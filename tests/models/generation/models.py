"""A small model of text, and ways to keep its keys and values."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import manyheads as mh
from manyheads.cache import BlockPool, Cache

EXACT: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(64),
    "ring": lambda: mh.RingCache(64),
    "quantized, recent": lambda: mh.QuantizedCache(8, recent=64),
    "paged": lambda: mh.PagedCache(BlockPool(2)),
}
"""Caches that give a text of 64 tokens exactly what none gives."""


CAUSAL = mh.Causal()


class Words(nn.Module):
    """A decoder-only model with what generation asks of one, and nothing else."""

    def __init__(
        self,
        vocab_size: int = 17,
        *,
        layers: int = 2,
        seed: int = 0,
        max_length: int | None = None,
        mask: mh.Mask = CAUSAL,
        sharp: float = 3.0,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(vocab_size=vocab_size, max_length=max_length)
        self.mask = mask
        self.embedding = nn.Embedding(vocab_size, 16)
        self.layers = nn.ModuleList(
            mh.EncoderLayer(16, 4, 32, num_kv_heads=2, norm="pre", rotary=mh.Rotary(4))
            for _ in range(layers)
        )
        self.output = nn.Linear(16, vocab_size, bias=False)
        nn.init.normal_(self.output.weight, std=sharp / 4)
        self.double().eval()
        self.read: list[int] = []

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        self.read.append(tokens.shape[1])
        x = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            cache = caches[index] if caches else None
            x = layer(x, mask=self.mask, positions=positions, cache=cache)
        return self.output(x[:, -1:] if last_only else x)

    def new_caches(self, kind: Callable[[], Cache] = mh.GrowingCache) -> list[Cache]:
        return [kind() for _ in self.layers]


def greedy(model: Words, prompt: list[int], length: int) -> list[int]:
    """The likeliest tokens, one pass over the whole text for each: what all else is held to."""
    text = list(prompt)
    for _ in range(length):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]
