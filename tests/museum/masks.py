"""What goes wrong with masks."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, LENGTH, WIDTH, Exhibit, ids, stream
from tests.museum.styles import Block, Einsum, Fused, Matmul, Writer
from torch import Tensor, nn

from manyheads.doctor import Facts

KEEP = torch.tensor([[True] * LENGTH, [True] * (LENGTH - 3) + [False] * 3])
PADDED: dict[str, Any] = {"padding_mask": KEEP}
REAL = Facts(real=True, causal=False)
CAUSAL = Facts(causal=True)


def style(base: type, *diseases: type, **options: Any) -> Any:
    """A factory of a style with a disease in one of its steps."""
    return lambda: type(diseases[0].__name__ + base.__name__, (*diseases, base), {})(**options)


# The future.


class Shifted:
    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool).triu(2)


class NoMask:
    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        return torch.zeros(q_len, kv_len, dtype=torch.bool)


class TooFaint:
    """Hidden scores are lowered a little: one part in twenty thousand leaks."""

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores - 10.0 * hidden


class MultipliedAfter:
    """Weights are set to 0 behind the softmax, whose sum the future has entered."""

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.where(hidden, scores, scores)

    def masked(self, scores: Tensor, keep: Any) -> Tensor:
        self.now = self.hidden(*scores.shape[-2:])
        return scores

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).masked_fill(self.now, 0.0)


class LastRowOnly:
    """A mask that forgets one row in the middle."""

    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        hidden = torch.ones(q_len, kv_len, dtype=torch.bool).triu(1)
        hidden[q_len // 2] = False
        return hidden


class NormOverLength(nn.Module):
    """A norm whose mean is taken over the text."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Matmul(causal=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x - x.mean(dim=1, keepdim=True))


class ConvBoth(nn.Module):
    """A convolution that pads on both sides before a causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.block = Block(Fused(causal=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.conv(x.mT).mT)


class TorchShifted(nn.Module):
    """nn.MultiheadAttention under a triangle that begins one too late."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(2)
        return self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0]


class Strict:
    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool).triu(0)

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, -1e9)


class InvertedCausal:
    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril(-1)


class InvertedPadding:
    def padded(self, keep: Tensor) -> Tensor:
        return keep.bool()[:, None, None, :]


class TorchInverted(nn.Module):
    """A mask of what is real, given to a layer that hides what is True."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=padding_mask, need_weights=False)[0]


# Padding.


class OneHead:
    """Padding is hidden from the first head alone."""

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        first = torch.zeros(HEADS, 1, 1, dtype=torch.bool)
        first[0] = True
        return scores.masked_fill(hidden & first, torch.finfo(scores.dtype).min)


class Faint:
    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, -6.0)


class SilentAfter:
    """Weights of padding are set to 0 behind the softmax."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        weights = (q @ k.mT * self.scale(q)).softmax(-1)
        return (weights * keep[:, None, None, :]) @ v


class FirstLayerOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(Matmul()), Block(Fused())

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return self.second(self.first(x, padding_mask))


class MeanOfAll(nn.Module):
    """A sentence embedding that averages padding too."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(Fused())

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return self.block(x, padding_mask).mean(dim=1)


class ZeroValues:
    """Padding's values are set to 0, and its keys are seen."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v * keep[:, None, :, None])


class Added:
    """The mask is added as it is."""

    def padded(self, keep: Tensor) -> Tensor:
        return keep[:, None, None, :]

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores + hidden.to(scores.dtype)


class AddedToFused(Fused):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, keep[:, None, None, :].to(q.dtype))


class AddedToTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        added = padding_mask.to(x.dtype)
        return self.attention(x, x, x, key_padding_mask=added, need_weights=False)[0]


class Ignored:
    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return super().mix(q, k, v, None)


class FusedDropsCausal(Fused):
    """is_causal is dropped when there is a mask."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, keep[:, None, None, :])


class FusedDropsPadding(Fused):
    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class MatmulDropsCausal(Matmul):
    def masked(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            return self.fill(scores, self.padded(keep))
        return self.fill(scores, self.hidden(*scores.shape[-2:]))


class OnQueries:
    def padded(self, keep: Tensor) -> Tensor:
        return ~keep[:, None, :, None]


class Tiled(nn.Module):
    """A mask for (batch * heads) rows that was tiled instead of repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        hidden = ~padding_mask[:, None, :].expand(-1, x.shape[1], -1)
        return self.attention(x, x, x, attn_mask=hidden.repeat(HEADS, 1, 1), need_weights=False)[0]


class TiledMatmul(Matmul):
    def padded(self, keep: Tensor) -> Tensor:
        return ~keep.repeat(HEADS, 1).view(keep.shape[0], HEADS, 1, -1)


class Packed:
    """Attention among packed documents; `same` says which pairs may see each other."""

    causal = True

    def forward(self, x: Tensor, document_ids: Tensor) -> Tensor:
        self.same = self.pairs(document_ids)
        return self.w_o(self.merge(self.mix(*self.heads(x, x), None)))

    def pairs(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] == ids[:, None, :]


class PackedMatmul(Packed, Matmul):
    def masked(self, scores: Tensor, keep: Any) -> Tensor:
        return self.fill(super().masked(scores, None), ~self.same[:, None])


class PackedFused(Packed, Fused):
    def seen(self, q: Tensor, k: Tensor, keep: Any) -> Tensor:
        return super().seen(q, k, None) & self.same[:, None]


class NotEarlier:
    """Only later documents are hidden."""

    def pairs(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] >= ids[:, None, :]


class NoDocuments:
    def pairs(self, ids: Tensor) -> Tensor:
        return torch.ones(1, ids.shape[1], ids.shape[1], dtype=torch.bool)


class Windowed:
    """A causal window of 3 keys, the query's own included."""

    causal = True
    size = 3

    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        back = torch.arange(q_len)[:, None] - torch.arange(kv_len)
        return (back < 0) | (back >= self.size)


class Wider(Windowed):
    size = 4


class Narrower(Windowed):
    size = 2


# Rows that see nobody.


class Infinite:
    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, -torch.inf)


class Mended:
    """The NaN is taken out of the output, and stays in the gradient."""

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores + torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1).nan_to_num(0.0)


class Billion:
    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, -1e9)


class Zeroed:
    """Hidden weights are exactly 0, and a row without a key gives 0."""

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        self.now = hidden | getattr(self, "now", False)
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min)

    def normalise(self, scores: Tensor) -> Tensor:
        hidden, self.now = self.now, torch.tensor(False)
        return scores.softmax(dim=-1).masked_fill(hidden, 0.0)


def padded(name: str, build: Any, code: str = "", facts: Facts = REAL) -> Exhibit:
    return Exhibit(name, build, (stream(),), PADDED, facts, code)


def plain(name: str, build: Any, code: str = "", facts: Facts = CAUSAL) -> Exhibit:
    return Exhibit(name, build, (stream(),), {}, facts, code)


def packed(name: str, build: Any, code: str = "") -> Exhibit:
    half = (torch.arange(LENGTH) >= 6).long().expand(2, -1)
    return Exhibit(name, build, (stream(), half), {}, CAUSAL, code)


def window(name: str, build: Any, code: str = "") -> Exhibit:
    return plain(name, build, code, Facts(causal=True, window=3))


BROKEN = [
    plain("shifted-matmul", style(Matmul, Shifted, causal=True), "future_leak"),
    plain("shifted-einsum", style(Einsum, Shifted, causal=True), "future_leak"),
    plain("shifted-fused", style(Fused, Shifted, causal=True), "future_leak"),
    plain("shifted-torch", TorchShifted, "future_leak"),
    plain("no-mask", style(Fused, NoMask, causal=True), "future_leak"),
    plain("faint", style(Matmul, TooFaint, causal=True), "future_leak"),
    plain("multiplied-after", style(Einsum, MultipliedAfter, causal=True), "future_leak"),
    plain("one-row", style(Fused, LastRowOnly, causal=True), "future_leak"),
    plain("norm-over-length", NormOverLength, "future_leak"),
    plain("conv-both-sides", ConvBoth, "future_leak"),
    Exhibit("second-layer", lambda: Writer(Fused(True), style(Matmul, Shifted, causal=True)()),
            (ids(),), {}, CAUSAL, "future_leak"),
    plain("strict-matmul", style(Matmul, Strict, causal=True), "self_excluded"),
    plain("strict-einsum", style(Einsum, Strict, causal=True), "self_excluded"),
    plain("strict-fused", style(Fused, Strict, causal=True), "self_excluded"),
    Exhibit("strict-in-a-model", lambda: Writer(style(Matmul, Strict, causal=True)()), (ids(),),
            {}, CAUSAL, "self_excluded"),
    plain("causal-matmul", style(Matmul, InvertedCausal, causal=True), "mask_inverted"),
    plain("causal-fused", style(Fused, InvertedCausal, causal=True), "mask_inverted"),
    padded("padding-matmul", style(Matmul, InvertedPadding), "mask_inverted"),
    padded("padding-fused", style(Fused, InvertedPadding), "mask_inverted"),
    padded("padding-torch", TorchInverted, "mask_inverted"),
    Exhibit("padding-writer", lambda: Writer(style(Einsum, InvertedPadding)()), (ids(),),
            {"attention_mask": KEEP}, Facts(), "mask_inverted"),
    padded("one-head", style(Matmul, OneHead), "padding_leak"),
    padded("faint", style(Einsum, Faint), "padding_leak"),
    padded("silent-after", style(Matmul, SilentAfter), "padding_leak"),
    padded("zero-values", style(Fused, ZeroValues), "padding_leak"),
    padded("first-layer-only", FirstLayerOnly, "padding_leak"),
    padded("mean-of-all", MeanOfAll, "padding_leak"),
    padded("matmul", style(Matmul, Added), "float01_mask_added"),
    padded("einsum", style(Einsum, Added), "float01_mask_added"),
    padded("fused", AddedToFused, "float01_mask_added"),
    padded("torch", AddedToTorch, "float01_mask_added"),
    padded("ignored-matmul", style(Matmul, Ignored), "mask_lost"),
    padded("ignored-fused", style(Fused, Ignored), "mask_lost"),
    padded("fused-drops-causal", lambda: FusedDropsCausal(True), "mask_lost",
           Facts(real=True, causal=True)),
    padded("fused-drops-padding", lambda: FusedDropsPadding(True), "mask_lost",
           Facts(real=True, causal=True)),
    padded("matmul-drops-causal", lambda: MatmulDropsCausal(True), "mask_lost",
           Facts(real=True, causal=True)),
    padded("on-queries-matmul", style(Matmul, OnQueries), "mask_wrong_axis"),
    padded("on-queries-fused", style(Fused, OnQueries), "mask_wrong_axis"),
    padded("tiled-torch", Tiled, "mask_wrong_axis"),
    padded("tiled-matmul", TiledMatmul, "mask_wrong_axis"),
    packed("earlier-matmul", style(PackedMatmul, NotEarlier), "document_leak"),
    packed("earlier-fused", style(PackedFused, NotEarlier), "document_leak"),
    packed("all-fused", style(PackedFused, NoDocuments), "document_leak"),
    window("wider-matmul", style(Matmul, Wider), "window_off_by_one"),
    window("wider-fused", style(Fused, Wider), "window_off_by_one"),
    window("narrower-einsum", style(Einsum, Narrower), "window_off_by_one"),
    window("two-layers", lambda: nn.Sequential(*(Block(style(Fused, Wider)()) for _ in "ab")),
           "window_off_by_one"),
    padded("infinite-matmul", style(Matmul, Infinite), "empty_row_nan"),
    padded("infinite-einsum", style(Einsum, Infinite), "empty_row_nan"),
    padded("mended-matmul", style(Matmul, Mended), "empty_row_nan"),
    padded("billion-matmul", style(Matmul, Billion), "half_overflow"),
    padded("billion-einsum", style(Einsum, Billion), "half_overflow"),
    padded("lowest-matmul", Matmul, "empty_row_mean"),
    padded("lowest-einsum", Einsum, "empty_row_mean"),
]  # fmt: skip

HEALTHY = [
    plain("causal-fused", lambda: Fused(True)),
    plain("causal-einsum", lambda: Einsum(True)),
    padded("zeroed-matmul", style(Matmul, Zeroed)),
    padded("zeroed-causal", style(Einsum, Zeroed, causal=True), facts=Facts(real=True)),
    padded("fused", Fused),
    padded("fused-causal", lambda: Fused(True), facts=Facts(real=True, causal=True)),
    packed("packed-matmul", PackedMatmul),
    packed("packed-fused", PackedFused),
    window("window-matmul", style(Matmul, Windowed)),
    window(
        "window-layers", lambda: nn.Sequential(*(Block(style(Fused, Windowed)()) for _ in "ab"))
    ),
    Exhibit("writer", lambda: Writer(Fused(True), Fused(True)), (ids(),), {}, Facts()),
    Exhibit("writer-padded", lambda: Writer(Fused(), Fused()), (ids(),), {"attention_mask": KEEP}),
]
