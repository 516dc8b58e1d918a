"""What goes wrong inside of a layer, apart from masks."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, UNKNOWN, WIDTH, WORDS, Exhibit, ids, stream
from tests.museum.masks import CAUSAL, KEEP, style
from tests.museum.styles import (
    Block,
    Cross,
    Einsum,
    Fused,
    FusedCross,
    Matmul,
    Rotated,
    Writer,
    rotate,
)
from torch import Tensor, nn

from manyheads.doctor import Facts

# Heads.


class MergedAcross:
    def merge(self, x: Tensor) -> Tensor:
        return x.contiguous().view(x.shape[0], x.shape[2], WIDTH)


class SplitAcross:
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], HEADS, x.shape[1], -1)


class BothAcross(SplitAcross, MergedAcross):
    pass


# The axis of the softmax.


class OverQueries:
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-2)


# Context.


class PackedCross(nn.Module):
    """One packed projection of the stream serves queries, keys and values: the context is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(query).chunk(3, -1)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class IdleContext(nn.Module):
    """A decoder layer whose cross-attention was handed the stream twice."""

    def __init__(self) -> None:
        super().__init__()
        self.itself, self.across = Fused(causal=True), Cross()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.itself(x)
        return x + self.across(x, x)


class SwappedFused(FusedCross):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, v, k)


class Swapped:
    """Projections in the order q, v, k."""

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, v, k


# Positions.


class Nowhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class ByBatch(nn.Module):
    """A table that is indexed by the batch's axis."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", torch.randn(64, 1, WIDTH, generator=torch.Generator()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.shape[0]]


class Constant(nn.Module):
    """Every token gets the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.wpe = nn.Embedding(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wpe(torch.zeros(x.shape[1], dtype=torch.long))


class TurnedValues:
    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rotate(q), rotate(k), rotate(v)


# Dropout.


class AlwaysDrops:
    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, 0.1)


class FusedAlwaysDrops(Fused):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)


class Answers:
    """Hands its weights back beside the output."""

    def normalise(self, scores: Tensor) -> Tensor:
        self.now = super().normalise(scores)
        return self.now

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.now


class AnswersDropped(Answers):
    def drop(self, weights: Tensor) -> Tensor:
        self.now = super().drop(weights)
        return self.now


class SummedInBf16(Answers):
    """Weights are divided by a sum that is kept in bf16, whose steps stall."""

    def normalise(self, scores: Tensor) -> Tensor:
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        total = torch.zeros_like(shares[..., 0], dtype=torch.bfloat16)
        for share in shares.unbind(-1):
            total = total + share.bfloat16()
        self.now = shares / total[..., None]
        return self.now


class TorchAnswers(nn.Module):
    """torch's own layer returns weights that dropout has been at."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x)


# Randomness and state.


class Noisy:
    def normalise(self, scores: Tensor) -> Tensor:
        return (scores + 0.01 * torch.randn_like(scores)).softmax(-1)


class Remembers(nn.Module):
    """Adds what it said last time."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = Fused(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.attention(x) + 0.1 * self.last
        self.last = float(out.mean())
        return out


# Batches.


class LengthFirst(nn.Module):
    """torch's default layout, given rows first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class LengthFirstEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


class MeanOfBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Matmul()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x / x.std(dim=(0, 1), keepdim=True))


# Learning.


class Detached:
    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q.detach(), k.detach(), v


class FromData:
    def heads(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = F.linear(x, self.w_q.weight.data, self.w_q.bias)
        return self.split(q), self.split(self.w_k(context)), self.split(self.w_v(context))


class Hard:
    """Takes the best key alone, which has no slope."""

    def normalise(self, scores: Tensor) -> Tensor:
        return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


class SpareProjection(Matmul):
    def __init__(self) -> None:
        super().__init__()
        self.w_spare = nn.Linear(WIDTH, WIDTH)


class SpareLayer(nn.Module):
    """A stack whose last layer was forgotten in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(Fused()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x)
        return x


class LogOfZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(Matmul())

    def forward(self, x: Tensor) -> Tensor:
        return self.block((x - x).log() * 0)


class HiddenPast(nn.Module):
    """A lower triangle where True hides, as in torch's layers: the last token sees nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())
        return x


class EmptyRows(nn.Module):
    """A softmax over -inf alone, in an ordinary call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(Fused()), Block(style(Matmul, Nothing, causal=True)())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Nothing:
    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool)

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, -torch.inf)


class Loud(Writer):
    """Logits by an embedding of standard deviation 1."""

    def __init__(self) -> None:
        super().__init__(Fused(True))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight


class LoudHead(Writer):
    def __init__(self) -> None:
        super().__init__(Matmul(True))
        nn.init.normal_(self.head.weight)


# Two paths.


class ScaledInTraining(Matmul):
    def scale(self, q: Tensor) -> float:
        return 1.0 if self.training else q.shape[-1] ** -0.5


class CausalInTraining(Fused):
    """The mask is made in training only."""

    def seen(self, q: Tensor, k: Tensor, keep: Any) -> Any:
        return super().seen(q, k, keep) if self.training else None


class ShorterInEval(nn.Module):
    """Leaves the padding out of what it returns, in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(Fused())

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        out = self.block(x, padding_mask)
        return out if self.training else out[:, : int(padding_mask.sum(1).max())]


# Padding on the left.

LEFT = KEEP.flip(1)


class LeftPadded(Writer):
    pass


def layer(name: str, build: Any, code: str = "", facts: Facts = UNKNOWN) -> Exhibit:
    return Exhibit(name, build, (stream(),), {}, facts, code)


def crossed(name: str, build: Any, code: str = "") -> Exhibit:
    return Exhibit(name, build, (stream(), stream(7), stream(7) * 0.9), {}, UNKNOWN, code)


def writes(name: str, build: Any, code: str = "", **options: Any) -> Exhibit:
    return Exhibit(name, build, (ids(),), options, Facts(), code)


BROKEN = [
    layer("matmul", style(Matmul, MergedAcross), "heads_merged_wrong"),
    layer("fused", style(Fused, MergedAcross), "heads_merged_wrong"),
    layer("causal-einsum", style(Einsum, MergedAcross, causal=True), "heads_merged_wrong", CAUSAL),
    layer("split-matmul", style(Matmul, SplitAcross), "heads_merged_wrong"),
    layer("both-fused", style(Fused, BothAcross), "heads_merged_wrong"),
    layer("in-a-block", lambda: Block(style(Fused, MergedAcross)()), "heads_merged_wrong"),
    layer("matmul", style(Matmul, OverQueries), "softmax_axis"),
    layer("einsum", style(Einsum, OverQueries), "softmax_axis"),
    layer("causal", style(Matmul, OverQueries, causal=True), "softmax_axis", CAUSAL),
    Exhibit("cross", style(Cross, OverQueries), (stream(), stream(7)), {}, UNKNOWN,
            "softmax_axis"),
    crossed("packed", PackedCross, "cross_ignores_context"),
    Exhibit("decoder-layer", IdleContext, (stream(), stream(7)), {}, CAUSAL,
            "cross_ignores_context"),
    crossed("fused", SwappedFused, "key_value_swapped"),
    layer("matmul", style(Matmul, Swapped), "key_value_swapped"),
    layer("in-a-block", lambda: Block(style(Fused, Swapped)()), "key_value_swapped"),
    writes("missing", lambda: Writer(Fused(), place=Nowhere()), "no_position"),
    writes("by-batch", lambda: Writer(Matmul(), place=ByBatch()), "no_position"),
    writes("constant", lambda: Writer(Einsum(), Fused(), place=Constant()), "no_position"),
    layer("matmul", style(Matmul, TurnedValues), "rope_on_values"),
    layer("fused-causal", style(Fused, TurnedValues, causal=True), "rope_on_values", CAUSAL),
    layer("matmul", style(Matmul, AlwaysDrops), "dropout_in_eval"),
    layer("fused", FusedAlwaysDrops, "dropout_in_eval"),
    layer("block", lambda: Block(style(Einsum, AlwaysDrops)()), "dropout_in_eval"),
    layer("matmul", style(Matmul, AnswersDropped, dropout=0.3), "weights_after_dropout"),
    layer("einsum", style(Einsum, AnswersDropped, dropout=0.3), "weights_after_dropout"),
    layer("torch", TorchAnswers, "weights_after_dropout"),
    layer("summed-in-bf16", style(Matmul, SummedInBf16), "weights_not_one"),
    layer("noisy", style(Matmul, Noisy), "nondeterministic_eval"),
    layer("remembers", Remembers, "nondeterministic_eval"),
    layer("length-first", LengthFirst, "batch_mixing"),
    layer("length-first-encoder", LengthFirstEncoder, "batch_mixing"),
    layer("mean-of-batch", MeanOfBatch, "batch_mixing"),
    layer("detached", style(Matmul, Detached), "gradient_dead"),
    layer("from-data", style(Fused, FromData), "gradient_dead"),
    layer("hard", style(Einsum, Hard), "gradient_dead"),
    layer("spare-projection", SpareProjection, "unused_parameters"),
    layer("spare-layer", SpareLayer, "unused_parameters"),
    layer("log-of-zero", LogOfZero, "nan_origin"),
    layer("empty-rows", EmptyRows, "nan_origin"),
    layer("hidden-past-torch", HiddenPast, "nan_origin"),
    writes("tied", Loud, "init_loss"),
    writes("head", LoudHead, "init_loss"),
    layer("scaled-in-training", ScaledInTraining, "train_eval_mismatch"),
    layer("causal-in-training", lambda: CausalInTraining(True), "train_eval_mismatch"),
    Exhibit("shorter-in-eval", ShorterInEval, (stream(),), {"padding_mask": KEEP},
            Facts(real=True), "train_eval_mismatch"),
    writes("table", lambda: Writer(Fused(True)), "left_pad_position", attention_mask=LEFT),
    writes("both-ways", lambda: Writer(Fused(), Fused()), "left_pad_position",
           attention_mask=LEFT),
]  # fmt: skip

HEALTHY = [
    layer("matmul", Matmul),
    layer("rotated", style(Matmul, Rotated)),
    layer("rotated-causal", style(Fused, Rotated, causal=True)),
    Exhibit("cross", Cross, (stream(), stream(7))),
    crossed("fused-cross", FusedCross),
    layer("answers", style(Matmul, Answers, dropout=0.3)),
    layer("dropping", lambda: Block(
        Matmul(dropout=0.3), 0.1)),
    Exhibit("rotated-writer-left", lambda: Writer(style(Fused, Rotated, causal=True)(),
            place=Nowhere()), (ids(),), {"attention_mask": LEFT}),
]  # fmt: skip
