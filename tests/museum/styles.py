"""Right attention in the styles in which people write it; each step can be done wrong."""

import math

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, WIDTH, WORDS
from torch import Tensor, nn


class Steps(nn.Module):
    """The steps that hand-written layers share. `keep` (batch, length): True is real."""

    causal = False

    def __init__(self, causal: bool | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.causal = type(self).causal if causal is None else causal
        self.p = dropout
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], WIDTH)

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def scale(self, q: Tensor) -> float:
        return q.shape[-1] ** -0.5

    def hidden(self, q_len: int, kv_len: int) -> Tensor:
        """The future, (q_len, kv_len)."""
        return torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len + 1)

    def padded(self, keep: Tensor) -> Tensor:
        return ~keep.bool()[:, None, None, :]

    def fill(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min)

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.p, self.training)

    def masked(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        if self.causal:
            scores = self.fill(scores, self.hidden(*scores.shape[-2:]))
        return scores if keep is None else self.fill(scores, self.padded(keep))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        raise NotImplementedError

    def heads(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.turn(
            self.split(self.w_q(x)), self.split(self.w_k(context)), self.split(self.w_v(context))
        )

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.w_o(self.merge(self.mix(*self.heads(x, x), padding_mask)))


class Matmul(Steps):
    """Scores written out as a matrix product."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale(q)
        return torch.matmul(self.drop(self.normalise(self.masked(scores, keep))), v)


class Einsum(Steps):
    """The same with named axes, heads third."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale(q)
        weights = self.drop(self.normalise(self.masked(scores, keep)))
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class Fused(Steps):
    """torch's fused function under one mask."""

    def seen(self, q: Tensor, k: Tensor, keep: Tensor | None) -> Tensor | None:
        seen = None
        if self.causal:
            seen = ~self.hidden(q.shape[2], k.shape[2])[None, None]
        if keep is not None:
            real = ~self.padded(keep)
            seen = real if seen is None else seen & real
        return seen

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        mask = self.seen(q, k, keep)
        dropped = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, mask, dropped, scale=self.scale(q))


class Cross(Matmul):
    """Cross-attention, written out: a stream asks a context."""

    def forward(self, x: Tensor, context: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.w_o(self.merge(self.mix(*self.heads(x, context), padding_mask)))


class FusedCross(Fused):
    """Cross-attention over torch's fused function, queries, keys and values apart."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (
            self.split(self.w_q(query)),
            self.split(self.w_k(key)),
            self.split(self.w_v(value)),
        )
        return self.w_o(self.merge(self.mix(*self.turn(q, k, v), None)))


class Block(nn.Module):
    """A pre-norm layer around any attention."""

    def __init__(self, attention: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = attention
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        masks = () if padding_mask is None else (padding_mask,)
        x = x + self.dropout(self.attention(self.first(x), *masks))
        return x + self.dropout(self.feed_forward(self.second(x)))


class Writer(nn.Module):
    """A small language model around any attentions: ids in, logits out."""

    def __init__(self, *attentions: nn.Module, place: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.place = Table() if place is None else place
        self.layers = nn.ModuleList(Block(each) for each in attentions)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.place(self.embed(input_ids))
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.head(self.norm(x))


class Table(nn.Module):
    """Learned positions, added."""

    def __init__(self) -> None:
        super().__init__()
        self.wpe = nn.Embedding(64, WIDTH)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x + self.wpe(torch.arange(start, start + x.shape[1]))


class Waves(nn.Module):
    """Sinusoidal positions, added."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(64)[:, None] * torch.exp(
            torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH)
        )
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.shape[1]]


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotary positions in halves, for (batch, heads, length, head_dim)."""
    half = x.shape[-1] // 2
    inv_freq = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(start, start + x.shape[2], dtype=x.dtype)[:, None] * inv_freq
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Rotated:
    """Queries and keys turned by their positions."""

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rotate(q), rotate(k), v
