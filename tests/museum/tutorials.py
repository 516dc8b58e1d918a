"""The layers of the two tutorials that this project grew out of, written anew with their faults."""

import math

import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, LENGTH, WIDTH, Exhibit, stream
from torch import Tensor, nn

from manyheads.doctor import Facts


class TutorialA(nn.Module):
    """One packed projection of the query's stream; -1e9; weights returned after dropout."""

    def __init__(self, d_model: int = WIDTH, num_heads: int = HEADS, dropout: float = 0.1) -> None:
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        batch, length, width = query.shape
        q, k, v = (
            each.view(batch, length, self.num_heads, self.d_k).transpose(1, 2)
            for each in self.qkv(query).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(F.softmax(scores, dim=-1))
        out = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)
        return self.dropout(self.out(out)), weights


class TutorialALayer(nn.Module):
    """Its encoder layer: post-norm, ReLU."""

    def __init__(self, d_model: int = WIDTH, num_heads: int = HEADS, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = TutorialA(d_model, num_heads, dropout)
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.first, self.second = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.first(x + self.dropout(self.attention(x, x, x, mask)[0]))
        return self.second(x + self.dropout(self.down(self.dropout(F.relu(self.up(x))))))


class TutorialB(nn.Module):
    """Separate projections; -inf; the mask (batch, q_len, kv_len) copied for each head."""

    def __init__(self, d_model: int = WIDTH, n_head: int = HEADS, dropout: float = 0.1) -> None:
        super().__init__()
        self.n_head, self.d_k = n_head, d_model // n_head
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.n_head, self.d_k).transpose(1, 2)

    def forward(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.split(self.W_Q(Q)), self.split(self.W_K(K)), self.split(self.W_V(V))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask.unsqueeze(1).repeat(1, self.n_head, 1, 1)
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = self.dropout(scores.softmax(dim=-1))
        out = (weights @ v).transpose(1, 2).contiguous().view(Q.shape[0], -1, WIDTH)
        return self.W_O(out), weights


X, CONTEXT = stream(), stream(7)
ALL = torch.ones(2, LENGTH, LENGTH, dtype=torch.long)
KEYS = Facts(seen=1, causal=False)

BROKEN = [
    Exhibit("tutorial-a-across", TutorialA, (X, CONTEXT, CONTEXT), {}, Facts(),
            "cross_ignores_context"),
    Exhibit("tutorial-a", TutorialA, (X, X, X), {"mask": ALL[:, None]}, KEYS,
            "weights_after_dropout"),
    Exhibit("tutorial-a-layer", TutorialALayer, (X,), {"mask": ALL[:, None]}, KEYS,
            "half_overflow"),
    Exhibit("tutorial-b", TutorialB, (X, X, X), {"mask": ALL}, KEYS, "weights_after_dropout"),
]  # fmt: skip

FAULTS = {
    "tutorial-a-across": {"cross_ignores_context", "weights_after_dropout"},
    "tutorial-a": {"weights_after_dropout", "empty_row_mean", "half_overflow"},
    "tutorial-a-layer": {"empty_row_mean", "half_overflow"},
    "tutorial-b": {"weights_after_dropout", "empty_row_nan"},
}
"""All that is wrong with each."""

HEALTHY: list[Exhibit] = []
