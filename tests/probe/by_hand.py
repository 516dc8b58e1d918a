"""Attention as people write it: nothing here knows that it will be watched."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Projections around a way to attend; keeps the weights before dropout."""

    def __init__(self, d_model: int = 32, num_heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return self.o(x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1))

    def attend(self, scores: Tensor, v: Tensor) -> Tensor:
        self.weights = F.softmax(scores, dim=-1)
        return self.merge(self.dropout(self.weights) @ v)


class Separate(Attention):
    """Three projections, -inf, a mask copied for each head."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if mask is not None:
            mask = mask.unsqueeze(1).repeat(1, self.num_heads, 1, 1)
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.attend(scores, v)


class Packed(Attention):
    """One projection, chunked; -1e9."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e9)
        return self.attend(scores, v)


class InPlace(Attention):
    """Steps that write into the scores; a learned bias; a softmax in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 1, 11))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.mT).add_(self.bias[..., : k.shape[2]])
        if mask is not None:
            scores.masked_fill_(~mask[:, None].bool(), torch.finfo(scores.dtype).min)
        return self.attend(scores.float(), v)


class Einsum(Attention):
    """(batch, length, heads, head_dim) all through; `where`."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)) for p in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = torch.where(mask[:, None] != 0, scores, -1e9)
        self.weights = scores.softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", self.dropout(self.weights), v).flatten(2))


class Additive(Attention):
    """A mask of numbers to be added; scores capped; the transpose on the left."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        scores = 5 * torch.tanh(q @ k.mT / 5)
        if mask is not None:
            scores = scores + (1.0 - mask[:, None].float()) * -10000.0
        self.weights = scores.softmax(dim=-1)
        return self.merge((v.mT @ self.dropout(self.weights).mT).mT)


class Folded(Attention):
    """Heads folded into the batch, `baddbmm`."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)).flatten(0, 1) for project in (self.q, self.k, self.v))
        mask = torch.ones(x.shape[0], x.shape[1], x.shape[1]) if mask is None else mask
        added = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask == 0, -torch.inf)
        added = added.repeat_interleave(self.num_heads, dim=0)
        scores = torch.baddbmm(added, q, k.mT, alpha=q.shape[-1] ** -0.5)
        self.weights = torch.softmax(scores, dim=-1)
        mixed = torch.bmm(self.dropout(self.weights), v)
        return self.merge(mixed.unflatten(0, (-1, self.num_heads)))


class OneByOne(Attention):
    """A loop over sentences and heads."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        rows, kept = [], []
        for b in range(x.shape[0]):
            for h in range(self.num_heads):
                scores = q[b, h] @ k[b, h].T / q.shape[-1] ** 0.5
                if mask is not None:
                    scores = scores.masked_fill(mask[b] == 0, -torch.inf)
                kept.append(scores.softmax(dim=-1))
                rows.append(self.dropout(kept[-1]) @ v[b, h])
        self.weights = torch.stack(kept)
        return self.merge(torch.stack(rows).view_as(q))


class ByTorch(Attention):
    """`scaled_dot_product_attention` with a mask, and values of their own width."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        seen = None if mask is None else mask[:, None].bool()
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        self.weights = hidden.softmax(dim=-1).nan_to_num()
        dropout = 0.1 if self.training else 0.0
        return self.merge(F.scaled_dot_product_attention(q, k, v, seen, dropout_p=dropout))


class Cosine(Attention):
    """Unit queries and keys, with a learned scale for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4, 1, 1) + 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scale.exp()
        if mask is not None:
            scores = scores + torch.zeros_like(mask, dtype=x.dtype)[:, None].masked_fill(
                mask[:, None] == 0, -torch.inf
            )
        return self.attend(scores, v)


class WrittenOut(Attention):
    """A softmax by hand: exponentials over their sum, from which the greatest was taken."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores[(mask == 0)[:, None].expand_as(scores)] = -torch.inf
        exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        self.weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
        return self.merge(self.dropout(self.weights) @ v)


class ByLogarithms(Attention):
    """A temperature for each head; the exponential of a log-softmax."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        scores = q @ k.mT / torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None]
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e9)
        self.weights = F.log_softmax(scores, dim=-1).exp()
        return self.merge(self.dropout(self.weights) @ v)


class Multiplied(Attention):
    """A mask that scores are multiplied with, and what it hides lowered after."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        mask = torch.ones(x.shape[1], x.shape[1]) if mask is None else mask[:, None].float()
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return self.attend(scores * mask + -1e4 * (1 - mask), v)


STYLES = [
    Separate, Packed, InPlace, Einsum, Additive, Folded, OneByOne, ByTorch, Cosine, WrittenOut,
    ByLogarithms, Multiplied,
]  # fmt: skip
