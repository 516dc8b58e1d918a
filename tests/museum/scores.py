"""What goes wrong with scores and heads, as it is seen from inside."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, UNKNOWN, WIDTH, Exhibit, ids, stream
from tests.museum.layers import layer
from tests.museum.masks import CAUSAL, style
from tests.museum.styles import Block, Einsum, Fused, Matmul, Writer
from torch import Tensor, nn


class Unscaled:
    def scale(self, q: Tensor) -> float:
        return 1.0


class ByModel:
    def scale(self, q: Tensor) -> float:
        return WIDTH**-0.5


class ByWholeWidth:
    """Divided by the width of the model, and not even by its root."""

    def scale(self, q: Tensor) -> float:
        return 1 / WIDTH


class Multiplied:
    def scale(self, q: Tensor) -> float:
        return q.shape[-1] ** 0.5


class Divided:
    def scale(self, q: Tensor) -> float:
        return 1 / q.shape[-1]


class MultipliedByWidth:
    def scale(self, q: Tensor) -> float:
        return WIDTH**0.5


class ScaledByBoth(Fused):
    """Queries are scaled by the width of the model before a function that scales by a head's."""

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q * WIDTH**-0.5, k, v


class ScaledBefore(Fused):
    """Queries are scaled before a function that scales."""

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q * q.shape[-1] ** -0.5, k, v


class Grouped(nn.Module):
    """Four query heads on two key and value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)

    def repeated(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        return self.o_proj(
            self.mix(q, self.repeated(k), self.repeated(v)).transpose(1, 2).flatten(2)
        )

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class GroupedMatmul(Grouped):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class Tiled:
    def repeated(self, x: Tensor) -> Tensor:
        return x.repeat(1, 2, 1, 1)


def loud(base: Any) -> Any:
    """Queries and keys of enormous size."""

    def build() -> nn.Module:
        made = base()
        with torch.no_grad():
            made.w_q.weight.mul_(300)
            made.w_k.weight.mul_(300)
        return made

    return build


class Magnet:
    """A bias that has grown until every query looks at the fourth key."""

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores

    def masked(self, scores: Tensor, keep: Any) -> Tensor:
        pull = torch.zeros(scores.shape[-1])
        pull[4] = 50.0
        return scores + pull


def copied(base: Any) -> Any:
    """Heads that were drawn once and repeated."""

    def build() -> nn.Module:
        made = base()
        with torch.no_grad():
            for linear in (made.w_q, made.w_k):
                size = WIDTH // HEADS
                linear.weight.copy_(linear.weight[:size].repeat(HEADS, 1))
                linear.bias.copy_(linear.bias[:size].repeat(HEADS))
        return made

    return build


def mute(base: Any) -> Any:
    """A head whose values are 0."""

    def build() -> nn.Module:
        made = base()
        with torch.no_grad():
            made.w_v.weight[6:12] = 0
            made.w_v.bias[6:12] = 0
        return made

    return build


class MaskPerHead(Fused):
    """A mask of all pairs is copied for each head, as numbers."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Any) -> Tensor:
        length = q.shape[2]
        mask = torch.zeros(length, length, dtype=q.dtype).repeat(*q.shape[:2], 1, 1)
        return F.scaled_dot_product_attention(q, k, v, mask)


LONG = 3000

BROKEN = [
    layer("matmul", style(Matmul, Unscaled), "scale_missing"),
    layer("fused", style(Fused, Unscaled), "scale_missing"),
    layer("einsum-causal", style(Einsum, Unscaled, causal=True), "scale_missing", CAUSAL),
    Exhibit("in-a-model", lambda: Writer(Fused(True), style(Matmul, Unscaled, causal=True)()),
            (ids(),), {}, CAUSAL, "scale_missing"),
    layer("matmul", style(Matmul, ByModel), "scale_d_model"),
    layer("fused-block", lambda: Block(style(Fused, ByModel)()), "scale_d_model"),
    layer("whole-width-einsum", style(Einsum, ByWholeWidth), "scale_d_model"),
    layer("einsum", style(Einsum, Divided), "scale_twice"),
    layer("both-widths-fused", ScaledByBoth, "scale_twice"),
    layer("width-matmul", style(Matmul, MultipliedByWidth), "scale_inverse"),
    layer("fused", ScaledBefore, "scale_twice"),
    layer("matmul", style(Matmul, Multiplied), "scale_inverse"),
    layer("fused", style(Fused, Multiplied), "scale_inverse"),
    layer("fused", style(Grouped, Tiled), "gqa_order"),
    layer("matmul", style(GroupedMatmul, Tiled), "gqa_order"),
    layer("matmul", loud(Matmul), "saturated"),
    layer("fused", loud(Fused), "saturated"),
    Exhibit("matmul", Matmul, (stream(LONG, 1),), {}, UNKNOWN, "quadratic_memory"),
    Exhibit("fused-mask-per-head", MaskPerHead, (stream(LONG, 1),), {}, UNKNOWN,
            "quadratic_memory"),
    layer("matmul", style(Matmul, Magnet), "collapsed"),
    layer("einsum", style(Einsum, Magnet), "collapsed"),
    layer("matmul", mute(Matmul), "dead_heads"),
    layer("fused", mute(Fused), "dead_heads"),
    layer("matmul", copied(Matmul), "redundant_heads"),
    layer("fused", copied(Fused), "redundant_heads"),
]  # fmt: skip

HEALTHY = [
    Exhibit("long-fused", Fused, (stream(LONG, 1),)),
    layer("grouped-fused", Grouped),
    layer("grouped-matmul", GroupedMatmul),
]  # fmt: skip
