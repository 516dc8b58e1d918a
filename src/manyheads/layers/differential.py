"""Differential attention: the difference of two maps, in which noise that both see cancels."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.layers.initialise import Init
from manyheads.layers.multihead import MultiHeadAttention
from manyheads.layers.scores import Scores
from manyheads.masks import Bound
from manyheads.positions import Bias, Rotary
from manyheads.shapes import check_count

EPS = 1e-5


class DifferentialAttention(MultiHeadAttention):
    """Attention whose weights are softmax(q_1 k_1^T) - lambda softmax(q_2 k_2^T).

    Query heads h and h + num_heads / 2 make one pair, and so do key and value heads: the two
    values stand side by side, twice as wide. What a pair takes is normalised to a root mean square
    of 1 - lambda_0. lambda = exp(q1 . k1) - exp(q2 . k2) + lambda_0 is learned, one number a layer,
    from lambda_0 = 0.8 - 0.6 exp(-0.3 depth) on.

    It is called as `MultiHeadAttention` is, with the same masks, positions and caches, and its
    cache holds as much. ``with_weights`` returns the difference, (batch, num_heads / 2, q_len,
    kv_len): rows sum to 1 - lambda, to 0 for a query that sees nobody, and weights may be negative.
    A bias and what `scores` learns belong to each of the num_heads maps. Dropout falls on both.

    How others differ: Hugging Face's DiffLlama is ours; the authors' code pairs neighbours, heads
    2h and 2h + 1, counts pairs as heads, and multiplies the norm by a learned weight.

    Args:
        d_model: Width of x and of the output.
        num_heads: Query heads, an even number.
        depth: How many layers lie below this one.
        num_kv_heads: Key and value heads, an even number; None = all.
        head_dim: Width of a query or key; None = ``d_model / num_heads``.
        d_context: Width of the context; None = `d_model`.
        bias: Whether the projections add a bias.
        dropout: Share of the weights of both maps to drop in training.
        rotary: Turns queries and keys by their positions.
        qk_norm: Normalise each head's queries and keys, before rotary.
        scores: How scores differ from q.k / sqrt(head_dim).
        init: How the weights begin; see `initialise`.
        device: Where the weights go.
        dtype: Of what type they are.

    Raises:
        OptionError: If heads do not pair up, or widths do not fit.

    Source:
        Ye et al. 2024, section 2 (arXiv:2410.05258).

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.DifferentialAttention(64, 8, depth=3)
        >>> layer(torch.randn(2, 10, 64), mask=mh.Causal()).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        depth: int = 0,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_context: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
        qk_norm: Literal["rms", "layer"] | None = None,
        scores: Scores | None = None,
        init: Init = "xavier",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            d_context=d_context,
            bias=bias,
            dropout=dropout,
            rotary=rotary,
            qk_norm=qk_norm,
            scores=scores,
            init=init,
            device=device,
            dtype=dtype,
        )
        check_pairs("num_heads", self.num_heads)
        check_pairs("num_kv_heads", self.num_kv_heads)
        start = 0.8 - 0.6 * math.exp(-0.3 * check_count("depth", depth, least=0))
        self.balance = Balance(self.head_dim, start, device=device, dtype=dtype)

    def _mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bound: Bound | None,
        bias: Tensor | Bias | None,
        weights_into: list[Tensor] | None,
    ) -> Tensor:
        wide = torch.cat(v.chunk(2, dim=1), dim=-1)  # (batch, kv pairs, kv_len, 2 head_dim)
        maps: list[Tensor] | None = None if weights_into is None else []
        taken = super()._mix(q, k, torch.cat((wide, wide), dim=1), bound, bias, maps)
        share = self.balance().to(taken.dtype)
        if weights_into is not None and maps is not None:
            weights_into.append(_difference(maps[0], share))
        mixed = F.rms_norm(_difference(taken, share), (2 * self.head_dim,), eps=EPS)
        return mixed * (1 - self.balance.start)


class Balance(nn.Module):
    """lambda = exp(q1 . k1) - exp(q2 . k2) + start: the share of the second map.

    Args:
        width: Of the four vectors that are learned.
        start: What lambda is about at the beginning.
        device: Where they go.
        dtype: Of what type they are.
    """

    def __init__(
        self,
        width: int,
        start: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.start = start
        self.q1, self.k1, self.q2, self.k2 = (
            nn.Parameter(torch.empty(width, **place)) for _ in range(4)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for vector in self.parameters():
            nn.init.normal_(vector, std=0.1)

    def forward(self) -> Tensor:
        """lambda, in fp32 at least."""
        dtype = torch.promote_types(self.q1.dtype, torch.float32)
        first, second = (
            (q.to(dtype) * k.to(dtype)).sum().exp()
            for q, k in ((self.q1, self.k1), (self.q2, self.k2))
        )
        return first - second + self.start


def check_pairs(name: str, heads: int) -> None:
    """Refuse heads that do not pair up."""
    if heads % 2:
        raise OptionError(
            f"{name} must be even, since two heads make one map; got {name}={heads}. Take "
            f"{heads + 1}, or a MultiHeadAttention."
        )


def _difference(both: Tensor, share: Tensor) -> Tensor:
    first, second = both.chunk(2, dim=1)
    return first - share * second
