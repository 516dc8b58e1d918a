"""Decoders with a cache, in three styles, and what goes wrong with theirs."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, WIDTH, WORDS, Exhibit, ids
from tests.museum.styles import Block, Table, rotate
from torch import Tensor, nn

from manyheads.doctor import CacheFacts, Facts


class Cached(nn.Module):
    """Causal attention over what was cached and what is new, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def turned(self, x: Tensor, past: int) -> Tensor:
        return x

    def joined(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None:
            return k, v
        return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)

    def seen(self, q_len: int, kv_len: int) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)

    def forward(self, x: Tensor, past: Any) -> tuple[Tensor, Any]:
        q, k, v = (
            each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        start = 0 if past is None else past[0].shape[2]
        q, k = self.turned(q, start), self.turned(k, start)
        keys, values = self.joined(past, k, v)
        mixed = self.mix(q, keys, values)
        return self.out(mixed.transpose(1, 2).flatten(2)), self.kept(keys, values)

    def kept(self, keys: Tensor, values: Tensor) -> Any:
        return keys, values

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = ~self.seen(q.shape[2], k.shape[2])
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


class CachedFused(Cached):
    """The same over torch's fused function, with rotary."""

    def turned(self, x: Tensor, past: int) -> Tensor:
        return rotate(x, past)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, self.seen(q.shape[2], k.shape[2]))


class CachedWriter(nn.Module):
    """A language model that takes and returns a tuple of each layer's keys and values."""

    def __init__(self, attention: type[nn.Module], layers: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), Table()
        self.layers = nn.ModuleList(Block(attention()) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def start(self, past: Any) -> int:
        return 0 if past is None else past[0][0].shape[2]

    def forward(self, input_ids: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        x = self.place(self.embed(input_ids), self.start(past))
        new = []
        for index, layer in enumerate(self.layers):
            mixed, cache = layer.attention(layer.first(x), None if past is None else past[index])
            x = x + mixed
            x = x + layer.feed_forward(layer.second(x))
            new.append(cache)
        return self.head(self.norm(x)), tuple(new)


def reordered(cache: Any, index: Tensor) -> Any:
    return tuple(tuple(each.index_select(0, index) for each in layer) for layer in cache)


def facts(reorder: Any = reordered) -> Facts:
    return Facts(causal=True, cache=CacheFacts("past", output=1, reorder=reorder))


# What goes wrong.


class FromZero(CachedWriter):
    def start(self, past: Any) -> int:
        return 0


class TurnedFromZero(CachedFused):
    def turned(self, x: Tensor, past: int) -> Tensor:
        return self.rotary(x)

    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary()


class Rotary(nn.Module):
    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return rotate(x, start)


class UpperLeft(Cached):
    """The causal mask of a square, cut to size: a new query sees the first keys only."""

    def seen(self, q_len: int, kv_len: int) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril()


class FusedUpperLeft(CachedFused):
    """is_causal with a cache."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class LosesKeys(Cached):
    """Keeps the last 6 keys of what should be all."""

    def kept(self, keys: Tensor, values: Tensor) -> Any:
        return keys[:, :, -6:], values[:, :, -6:]


class SeesAll(CachedFused):
    """No mask for chunks, as if a chunk were always one token."""

    def seen(self, q_len: int, kv_len: int) -> Tensor:
        if q_len == kv_len:
            return super().seen(q_len, kv_len)
        return torch.ones(q_len, kv_len, dtype=torch.bool)


class OldValues(Cached):
    """Appends keys and forgets to append values."""

    def joined(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().joined(past, k, v)
        return keys, values if past is None else values.roll(1, dims=2)


class Ring(Cached):
    """A window of 4 keys."""

    size = 4

    def seen(self, q_len: int, kv_len: int) -> Tensor:
        seen = super().seen(q_len, kv_len)
        return seen & ~seen.tril(kv_len - q_len - self.size)


class RingOverwrites(Ring):
    """Evicts before it attends: early queries of a chunk lose keys that they still need."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[2] < k.shape[2]:
            k, v = k[:, :, -self.size :], v[:, :, -self.size :]
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = ~self.seen(q.shape[2], k.shape[2])
        return scores.masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1) @ v


class Sloped(Cached):
    """ALiBi: scores fall with the distance."""

    def places(self, q_len: int, kv_len: int) -> Tensor:
        return torch.arange(kv_len - q_len, kv_len)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q_len, kv_len = q.shape[2], k.shape[2]
        distance = (self.places(q_len, kv_len)[:, None] - torch.arange(kv_len)).abs()
        slopes = 2.0 ** -torch.arange(1, HEADS + 1, dtype=q.dtype)
        scores = q @ k.mT * q.shape[-1] ** -0.5 - slopes[:, None, None] * distance
        return scores.masked_fill(~self.seen(q_len, kv_len), -torch.inf).softmax(-1) @ v


class SlopedFromZero(Sloped):
    """Distances are counted as if new queries stood at the beginning."""

    def places(self, q_len: int, kv_len: int) -> Tensor:
        return torch.arange(q_len)


class Bucketed(Cached):
    """T5's buckets of distance, the far ones in one."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(9, HEADS)

    def place(self, q_len: int, kv_len: int) -> int:
        return kv_len - q_len

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q_len, kv_len = q.shape[2], k.shape[2]
        rows = torch.arange(q_len)[:, None] + self.place(q_len, kv_len)
        buckets = (rows - torch.arange(kv_len)).clamp(0, 8)
        bias = self.relative_attention_bias(buckets).permute(2, 0, 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
        return scores.masked_fill(~self.seen(q_len, kv_len), -torch.inf).softmax(-1) @ v


class BucketedFromZero(Bucketed):
    """Rows of the bias are those of a text's first queries: decoding reads one bucket only."""

    def place(self, q_len: int, kv_len: int) -> int:
        return 0


class TurnedTwice(TurnedFromZero):
    """The offset counts the cache twice: once as it is, once in what was counted before."""

    def turned(self, x: Tensor, past: int) -> Tensor:
        return self.rotary(x, 2 * past)


class AnswersLast(CachedWriter):
    """With a past, whatever is new, only its last token is read and answered."""

    def forward(self, input_ids: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        return super().forward(input_ids if past is None else input_ids[:, -1:], past)


def keys_only(cache: Any, index: Tensor) -> Any:
    return tuple((k.index_select(0, index), v) for k, v in cache)


def row_by_row(cache: Any, index: Tensor) -> Any:
    """Copied in place, so that later rows read what earlier ones have overwritten."""
    for layer in cache:
        for each in layer:
            for row, source in enumerate(index.tolist()):
                each[row] = each[source]
    return cache


def first_layer_only(cache: Any, index: Tensor) -> Any:
    return (*reordered(cache[:1], index), *cache[1:])


BROKEN = [
    Exhibit("learned-from-zero", lambda: FromZero(Cached), (ids(),), {}, facts(),
            "position_offset_cache"),
    Exhibit("rotary-from-zero", lambda: CachedWriter(TurnedFromZero), (ids(),), {}, facts(),
            "position_offset_cache"),
    Exhibit("upper-left", lambda: CachedWriter(UpperLeft), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("fused-upper-left", lambda: CachedWriter(FusedUpperLeft), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("loses-keys", lambda: CachedWriter(LosesKeys), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("chunk-sees-all", lambda: CachedWriter(SeesAll), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("values-shifted", lambda: CachedWriter(OldValues), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("ring-overwrites", lambda: CachedWriter(RingOverwrites), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("alibi-from-zero", lambda: CachedWriter(SlopedFromZero), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("t5-from-zero", lambda: CachedWriter(BucketedFromZero), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("rotary-twice", lambda: CachedWriter(TurnedTwice), (ids(),), {}, facts(),
            "position_offset_cache"),
    Exhibit("answers-last", lambda: AnswersLast(CachedFused), (ids(),), {}, facts(),
            "cache_mismatch"),
    Exhibit("keys-only", lambda: CachedWriter(Cached), (ids(),), {}, facts(keys_only),
            "beam_aliasing"),
    Exhibit("row-by-row", lambda: CachedWriter(CachedFused), (ids(),), {}, facts(row_by_row),
            "beam_aliasing"),
    Exhibit("first-layer-only", lambda: CachedWriter(CachedFused), (ids(),), {},
            facts(first_layer_only), "beam_aliasing"),
]  # fmt: skip

HEALTHY = [
    Exhibit("cached-matmul", lambda: CachedWriter(Cached), (ids(),), {}, facts()),
    Exhibit("cached-window", lambda: CachedWriter(Ring), (ids(),), {}, facts()),
    Exhibit("cached-alibi", lambda: CachedWriter(Sloped), (ids(),), {}, facts()),
    Exhibit("cached-t5", lambda: CachedWriter(Bucketed), (ids(),), {}, facts()),
    Exhibit("cached-fused-rotary", lambda: CachedWriter(CachedFused), (ids(),), {}, facts()),
]
