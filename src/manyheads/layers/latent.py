"""Attention to latents: keys and values that are kept as one short vector a token."""

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache, CrossCache
from manyheads.errors import CacheError
from manyheads.layers.checks import check_cache, check_stream, checked_rotary
from manyheads.layers.initialise import Init, initialise
from manyheads.layers.norm import RMSNorm
from manyheads.layers.projections import PackedLinear
from manyheads.layers.scores import Scores, attend
from manyheads.layers.stream import settle_self
from manyheads.layers.turning import append, turn_all, turn_new
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias, Rotary
from manyheads.shapes import Positions, check_count, check_probability


class LatentAttention(nn.Module):
    """Multi-head latent attention (MLA): all heads read one short latent of each token.

    c = norm(x W_c) is the latent, r = turn(x W_r) a key that all heads share and rotary turns.
    Head h has the key [c K_h | r], the value c V_h, and a query of the same two parts. The cache
    holds [c | r], `latent_dim` and the rotary's width, and nothing else, in a cache of any kind.

    There are two ways to the same numbers. *Expanded*, every latent becomes keys and values of all
    heads. *Absorbed*, since q (c K)^T = (q K^T) c^T, the queries come to the latents instead, and
    all heads read one head of keys. Without a cache the call is expanded; with one, it goes the
    way that multiplies less: a prompt expanded, a few queries after many tokens absorbed. (A bias
    that reads queries and keys is always shown the expanded ones.)

    Args:
        d_model: Width of x and of the output.
        num_heads: Heads.
        latent_dim: Width of a latent.
        head_dim: Width of the part of a query or key that does not turn.
        value_dim: Width of a value; None = `head_dim`.
        query_latent_dim: Width of a latent from which queries are made; None makes them from x.
        rotary: Turns the other part, which is as wide as its ``head_dim``; None leaves it out.
        bias: Whether the maps to the latents, and W_o, add a bias.
        dropout: Share of the weights to drop in training.
        init: How the weights begin; see `initialise`.
        device: Where the weights go.
        dtype: Of what type they are.

    Raises:
        OptionError: If a number counts nothing.

    Source:
        DeepSeek-AI 2024, section 2.1 (arXiv:2405.04434).

    Example:
        >>> import torch, manyheads as mh
        >>> rotary = mh.Rotary(8, pairs="interleaved")
        >>> layer = mh.LatentAttention(64, 4, 24, head_dim=16, rotary=rotary).eval()
        >>> x, cache = torch.randn(1, 10, 64), mh.GrowingCache()
        >>> with torch.no_grad():
        ...     whole = layer(x, mask=mh.Causal())
        ...     parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([9, 1], 1)]
        >>> torch.allclose(torch.cat(parts, 1), whole, atol=1e-5), cache.read().k.shape
        (True, torch.Size([1, 1, 10, 32]))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        latent_dim: int,
        *,
        head_dim: int,
        value_dim: int | None = None,
        query_latent_dim: int | None = None,
        rotary: Rotary | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        init: Init = "xavier",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check_count("d_model", d_model)
        self.num_heads = check_count("num_heads", num_heads)
        self.latent_dim = check_count("latent_dim", latent_dim)
        self.head_dim = check_count("head_dim", head_dim)
        self.value_dim = head_dim if value_dim is None else check_count("value_dim", value_dim)
        self.rotary = checked_rotary(rotary)
        self.turning_dim = 0 if rotary is None else rotary.head_dim
        self.dropout = check_probability("dropout", dropout)
        self.init: Init = init
        self._scale = Scores().scale_for(head_dim + self.turning_dim, rotary)

        place: dict[str, Any] = {"device": device, "dtype": dtype}
        asked = d_model
        self.q_down: nn.Module = nn.Identity()
        self.q_norm: nn.Module = nn.Identity()
        if query_latent_dim is not None:
            asked = check_count("query_latent_dim", query_latent_dim)
            self.q_down = nn.Linear(d_model, asked, bias=bias, **place)
            self.q_norm = RMSNorm(asked, eps=1e-6, **place)
        self.q_up = nn.Linear(asked, num_heads * (head_dim + self.turning_dim), bias=False, **place)
        kept = (latent_dim, self.turning_dim)
        self.kv_down = PackedLinear(d_model, kept, bias=bias, **place)
        self.kv_norm = RMSNorm(latent_dim, eps=1e-6, **place)
        self.kv_up = nn.Linear(
            latent_dim, num_heads * (head_dim + self.value_dim), bias=False, **place
        )
        self.out_proj = nn.Linear(num_heads * self.value_dim, d_model, bias=bias, **place)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                initialise(module, self.init)
            elif isinstance(module, RMSNorm):
                module.reset_parameters()

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Let each token of x take what it needs from x and from the cache.

        Arguments and errors are those of `MultiHeadAttention`.
        """
        self.check(x, cache=cache)
        with nullcontext() if cache is None else cache.serving(self):
            x, bound = settle_self(x, mask, positions, cache)
            q, turning = self._queries(x)
            latent, key = self._latents(x)
            turned, key = turn_new(self.rotary, turning, key, bound, cache, coordinates)
            kept = torch.cat((latent, key), dim=-1)
            if cache is not None:
                nothing = kept.new_empty(*kept.shape[:3], 0)  # The values are in the keys.
                kept, _, bound = append(cache, kept, nothing, bound)
            turned, kept = self._turn_kept(turning, turned, kept, bound, cache)
            absorbs = self._absorbs(q, kept, cache, bias)
            q, k, v = (self._absorbed if absorbs else self._expanded)(q, turned, kept)
            dropout = self.dropout if self.training else 0.0
            mixed = attend(
                *(q, k, v, bound),
                bias=bias,
                scale=self._scale,
                dropout=dropout,
                weights_into=weights_into,
            )
            if absorbs:
                mixed = mixed[..., : self.latent_dim] @ self._up()[1].mT
            return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def with_weights(
        self,
        x: Float[Tensor, "batch length d_model"],
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
    ) -> tuple[
        Float[Tensor, "batch length d_model"], Float[Tensor, "batch num_heads length kv_len"]
    ]:
        """Do what a call of the layer does, hooks included, and return each head's weights too."""
        weights: list[Tensor] = []
        out = self(
            x,
            mask=mask,
            positions=positions,
            cache=cache,
            bias=bias,
            coordinates=coordinates,
            weights_into=weights,
        )
        return out, weights[0]

    def _queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The part of each head's queries that meets latents, and the part that turns."""
        q = self.q_up(self.q_norm(self.q_down(x)))
        q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return q.split((self.head_dim, self.turning_dim), dim=-1)

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The latent of each token and its key that will turn, each as one head."""
        latent, key = self.kv_down(x)[:, None].split((self.latent_dim, self.turning_dim), dim=-1)
        return self.kv_norm(latent), key

    def _turn_kept(
        self,
        turning: Tensor,
        turned: Tensor,
        kept: Tensor,
        bound: Bound | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor]:
        if self.rotary is None:
            return turned, kept
        latent, key = kept[..., : self.latent_dim], kept[..., self.latent_dim :]
        turned, again = turn_all(self.rotary, turning, turned, key, bound, cache)
        # Seldom does a key turn again; else what the cache holds is read where it lies.
        return turned, kept if again is key else torch.cat((latent, again), dim=-1)

    def _absorbs(
        self, q: Tensor, kept: Tensor, cache: Cache | None, bias: Tensor | Bias | None
    ) -> bool:
        """Whether it multiplies less to bring the queries to the latents than latents to them."""
        if cache is None or (isinstance(bias, Bias) and bias.reads_content):
            return False
        if type(self.kv_up) is not nn.Linear:
            return False  # Whoever put another map in its place wants it called.
        q_len, kv_len, latent = q.shape[2], kept.shape[2], self.latent_dim
        width = self.head_dim + self.value_dim
        # Multiplications of each head; the part that turns costs both the same.
        expanded = kv_len * latent * width + q_len * kv_len * width
        absorbed = q_len * latent * width + q_len * kv_len * 2 * latent
        return absorbed < expanded

    def _expanded(self, q: Tensor, turned: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent, key = kept[..., : self.latent_dim], kept[..., self.latent_dim :]
        kv = self.kv_up(latent[:, 0]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = kv.split((self.head_dim, self.value_dim), dim=-1)
        k = torch.cat((k, key.expand(-1, self.num_heads, -1, -1)), dim=-1)
        return torch.cat((q, turned), dim=-1), k, v

    def _absorbed(self, q: Tensor, turned: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = torch.cat((q @ self._up()[0], turned), dim=-1)
        # Keys serve as values, of one width and without a copy; what turns is cut off later.
        return q, kept, kept

    def _up(self) -> tuple[Tensor, ...]:
        """What makes keys, and values, of latents: (num_heads, their width, latent_dim)."""
        up = self.kv_up.weight.unflatten(0, (self.num_heads, -1))
        return up.split((self.head_dim, self.value_dim), dim=1)

    def check(self, x: Tensor, cache: Cache | None = None) -> None:
        """Refuse what a call would refuse of its stream and its cache; whoever calls may too."""
        check_stream("x", x, self.d_model, self.out_proj._parameters.get("weight"))
        check_cache(cache)
        if isinstance(cache, CrossCache):
            raise CacheError(
                "the cache of a LatentAttention must hold a text; got CrossCache. It attends to "
                "x alone; take a GrowingCache."
            )

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, num_heads={self.num_heads}, latent_dim={self.latent_dim}, "
            f"head_dim={self.head_dim}, value_dim={self.value_dim}"
        )
