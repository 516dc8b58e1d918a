"""Positions twice or in the wrong pairs, amounts of padding, sums of weights, numbers of heads,
and arguments and axes that are taken for others."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, UNKNOWN, WIDTH, WORDS, Exhibit, ids, stream
from tests.museum.masks import CAUSAL, PADDED, REAL, style
from tests.museum.styles import (
    Block,
    Einsum,
    Fused,
    FusedCross,
    Matmul,
    Rotated,
    Table,
    Waves,
    Writer,
    rotate,
)
from torch import Tensor, nn

from manyheads.doctor import Facts

# Positions twice.


class TwiceInRow(nn.Module):
    """An embedding that adds places, in a model that adds them again."""

    def __init__(self, place: nn.Module) -> None:
        super().__init__()
        self.place, self.drop = place, nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.place(self.drop(self.place(x)))


class TurnedTwice:
    """Rotary in the layer and in what it calls."""

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rotate(rotate(q)), rotate(rotate(k)), v


class PlacedInside(nn.Module):
    """A first layer that adds, behind its norm, what the embedding has added."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), Fused(True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        places = self.wpe(torch.arange(input_ids.shape[1]))
        x = self.embed(input_ids) + places
        return self.head(x + self.attention(self.norm(x) + places))


class AddedToQueries(nn.Module):
    """Places are added to queries and keys in every layer, and never to the stream: healthy."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Table()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            placed = self.place(x)
            x = x + layer(placed, placed, x, need_weights=False)[0]
        return x


class Universal(nn.Module):
    """One layer, many times, told the places before each: healthy, if unusual."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.attention = Waves(), Matmul()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.place(x)
            x = x + self.attention(x)
        return x


# Rotary pairs.


def neighbours(x: Tensor) -> Tensor:
    """Rotary positions of neighbouring features."""
    half = x.shape[-1] // 2
    inv_freq = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * inv_freq
    a, b = x[..., 0::2], x[..., 1::2]
    turned = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(turned, dim=-1).flatten(-2)


class Neighbours:
    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return neighbours(q), neighbours(k), v


class Packed(nn.Module):
    """One projection for queries, keys and values, on which rotary acts."""

    rotate = staticmethod(rotate)

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class PackedNeighbours(Packed):
    rotate = staticmethod(neighbours)


TURNED = 4
"""Features of a head that rotary turns where it turns a part of them, from the first on."""


class Partly:
    """Positions turn the first features of each head, and leave the others as they are."""

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return partly(rotate, q), partly(rotate, k), v


class PartlyNeighbours:
    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return partly(neighbours, q), partly(neighbours, k), v


def partly(turn: Any, x: Tensor) -> Tensor:
    return torch.cat([turn(x[..., :TURNED]), x[..., TURNED:]], dim=-1)


class PackedByHead(nn.Module):
    """One projection that holds query, key and value of one head after another, as GPT-NeoX."""

    def __init__(self, turn: Any = rotate) -> None:
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.turn = turn

    def forward(self, x: Tensor) -> Tensor:
        made = self.query_key_value(x).unflatten(-1, (HEADS, 3, -1)).transpose(1, 2)
        q, k, v = made.unbind(dim=3)
        scores = partly(self.turn, q) @ partly(self.turn, k).mT * q.shape[-1] ** -0.5
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(ahead, -torch.inf).softmax(dim=-1) @ v
        return self.dense(mixed.transpose(1, 2).flatten(2))


def weighted(build: Any) -> Any:
    """The same weights for whatever has the same shapes."""

    def made() -> nn.Module:
        model, draw = build(), torch.Generator().manual_seed(11)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn(weight.shape, generator=draw) / weight.shape[-1] ** 0.5)
        return model

    return made


def writer(*attentions: Any) -> Any:
    return weighted(lambda: Writer(*(each() for each in attentions), place=nn.Identity()))


HALVES = style(Matmul, Rotated, causal=True)
RIGHT = Facts(causal=True, reference=weighted(HALVES)())
RIGHT_PACKED = Facts(causal=True, reference=weighted(Packed)())
RIGHT_PARTLY = Facts(causal=True, reference=weighted(style(Matmul, Partly, causal=True))())
RIGHT_BY_HEAD = Facts(causal=True, reference=weighted(PackedByHead)())
RIGHT_WRITER = Facts(causal=True, reference=writer(HALVES, HALVES)())


# Weights that do not sum to one.


class ScaledBehind:
    """The scale comes behind the softmax instead of before it."""

    def normalise(self, scores: Tensor) -> Tensor:
        head_dim = WIDTH // HEADS
        return (scores * head_dim**0.5).softmax(dim=-1) * head_dim**-0.5


class Thinned:
    """Small weights are set to 0, and the others are left as they were."""

    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(dim=-1)
        return weights.masked_fill(weights < 0.05, 0.0)


class SummedHeads(nn.Module):
    """Hands back the sum of the heads' weights, and calls it weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, weights = self.attention(x, x, x, average_attn_weights=False)
        return out, weights.sum(dim=1)


# How much padding there is.


class Emptied:
    """Padding is set to 0 before the projections, and then read like any other token."""

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return super().forward(x * padding_mask[..., None])  # type: ignore[misc]


class EmptiedTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        x = x * padding_mask[..., None]
        return self.attention(x, x, x, need_weights=False)[0]


class MeanOfAll(nn.Module):
    """A sum of real tokens, divided by the length of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = Fused(), nn.Linear(WIDTH, 3)

    def count(self, keep: Tensor) -> Any:
        return keep.shape[1]

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        x = self.attention(x, padding_mask) * padding_mask[..., None]
        return self.head(x.sum(dim=1) / self.count(padding_mask))


class MeanOfReal(MeanOfAll):
    def count(self, keep: Tensor) -> Any:
        return keep.sum(dim=1, keepdim=True).clamp(min=1)


class OverHeads:
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=1)


class ValueIgnored(FusedCross):
    """Values are made of the keys' stream."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().forward(query, key, key)


class KeyIgnored(FusedCross):
    """Keys are made of the values' stream."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().forward(query, value, value)


# Heads.


def narrow(length: int, fused: bool = False) -> Exhibit:
    """Heads of two features for many keys."""
    heads, name = WIDTH // 2, "torch" if fused else "matmul"

    class Narrow(Matmul):
        def split(self, x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    class Torch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, heads, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    build = Torch if fused else Narrow
    return Exhibit(name, build, (stream(length),), {}, UNKNOWN, "head_dim_small")


def paired(base: Any) -> Any:
    """Four heads that were grown out of two, and have hardly moved apart."""

    def build() -> nn.Module:
        made, draw = base(), torch.Generator().manual_seed(3)
        with torch.no_grad():
            for linear in (made.w_q, made.w_k):
                linear.weight.copy_(8 * linear.weight[: WIDTH // 2].repeat(2, 1))
                linear.weight.add_(0.01 * torch.randn(linear.weight.shape, generator=draw))
                linear.bias.zero_()
        return made

    return build


def layer(name: str, build: Any, code: str = "", facts: Facts = UNKNOWN) -> Exhibit:
    return Exhibit(name, build, (stream(),), {}, facts, code)


BROKEN = [
    Exhibit("table-in-a-writer", lambda: Writer(Fused(True), place=TwiceInRow(Table())),
            (ids(),), {}, CAUSAL, "position_twice"),
    Exhibit("waves-in-a-writer", lambda: Writer(Matmul(True), place=TwiceInRow(Waves())),
            (ids(),), {}, CAUSAL, "position_twice"),
    Exhibit("behind-the-norm", PlacedInside, (ids(),), {}, CAUSAL, "position_twice"),
    layer("rotary-matmul", style(Matmul, TurnedTwice), "position_twice"),
    layer("rotary-fused-block", lambda: Block(style(Fused, TurnedTwice)()), "position_twice"),
    layer("neighbours-matmul", weighted(style(Matmul, Neighbours, causal=True)),
          "rope_pairs_mixed", RIGHT),
    layer("neighbours-einsum", weighted(style(Einsum, Neighbours, causal=True)),
          "rope_pairs_mixed", RIGHT),
    layer("neighbours-packed", weighted(PackedNeighbours), "rope_pairs_mixed", RIGHT_PACKED),
    layer("neighbours-partly", weighted(style(Fused, PartlyNeighbours, causal=True)),
          "rope_pairs_mixed", RIGHT_PARTLY),
    layer("neighbours-packed-by-head", weighted(lambda: PackedByHead(neighbours)),
          "rope_pairs_mixed", RIGHT_BY_HEAD),
    Exhibit("neighbours-writer", writer(*[style(Fused, Neighbours, causal=True)] * 2), (ids(),), {},
            RIGHT_WRITER, "rope_pairs_mixed"),
    layer("scaled-behind-matmul", style(Matmul, ScaledBehind), "weights_not_one"),
    layer("scaled-behind-einsum", style(Einsum, ScaledBehind), "weights_not_one"),
    layer("thinned-matmul", style(Matmul, Thinned), "weights_not_one"),
    layer("summed-heads-torch", SummedHeads, "weights_not_one"),
    Exhibit("amount-emptied-matmul", style(Matmul, Emptied), (stream(),), PADDED, REAL,
            "padding_leak"),
    Exhibit("amount-emptied-torch", EmptiedTorch, (stream(),), PADDED, REAL, "padding_leak"),
    Exhibit("amount-mean-of-all", MeanOfAll, (stream(),), PADDED, REAL, "padding_leak"),
    layer("heads-matmul", style(Matmul, OverHeads), "softmax_axis"),
    layer("heads-einsum-causal", style(Einsum, OverHeads, causal=True), "softmax_axis", CAUSAL),
    layer("heads-block", lambda: Block(style(Matmul, OverHeads)()), "softmax_axis"),
    Exhibit("value-ignored", ValueIgnored, (stream(), stream(7), 0.9 * stream(7)), {}, UNKNOWN,
            "cross_ignores_context"),
    Exhibit("key-ignored", KeyIgnored, (stream(), stream(7), 0.9 * stream(7)), {}, UNKNOWN,
            "cross_ignores_context"),
    narrow(67), narrow(67, fused=True),
    layer("paired-matmul", paired(Matmul), "too_many_heads"),
    layer("paired-fused", paired(Fused), "too_many_heads"),
]  # fmt: skip

HEALTHY = [
    layer("places-added-to-queries", AddedToQueries),
    layer("universal", Universal),
    Exhibit("mean-of-real", MeanOfReal, (stream(),), PADDED, REAL),
    layer("rotary-of-the-reference", weighted(style(Fused, Rotated, causal=True)), facts=RIGHT),
    layer("packed-of-the-reference", weighted(Packed), facts=RIGHT_PACKED),
    layer("partly-of-the-reference", weighted(style(Matmul, Partly, causal=True)),
          facts=RIGHT_PARTLY),
    layer("packed-by-head-of-the-reference", weighted(PackedByHead), facts=RIGHT_BY_HEAD),
]  # fmt: skip
