"""Attention layers as people write them by hand, around torch's scaled_dot_product_attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HandWritten(nn.Module):
    """Self-attention with one or three projection matrices.

    Args:
        d_model: Width of the stream.
        num_heads: Heads.
        packed: One matrix for queries, keys and values, or three.
        causal: Whether nobody sees the future.
        rotary_length: Tokens for which rotary tables are made; None = no rotary.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        packed: bool,
        causal: bool = False,
        rotary_length: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.packed, self.causal = num_heads, packed, causal
        if packed:
            self.qkv_proj = nn.Linear(d_model, 3 * d_model)
        else:
            self.q_proj = nn.Linear(d_model, d_model)
            self.k_proj = nn.Linear(d_model, d_model)
            self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.rotary = rotary_length is not None
        if rotary_length is not None:
            width = d_model // num_heads
            frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
            angles = torch.arange(rotary_length)[:, None] * frequencies
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        if self.packed:
            q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = self._split(q), self._split(k), self._split(v)
        if self.rotary:
            q, k = self._turn(q), self._turn(k)
        if keep is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            mask = keep[:, None, None, :]
            if self.causal:
                length = x.shape[1]
                mask = mask & torch.ones(length, length, dtype=torch.bool).tril()
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        # (batch, length, d_model) -> (batch, heads, length, head_dim)
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _turn(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin


class Torch(nn.Module):
    """torch.nn.MultiheadAttention as its users call it.

    Args:
        d_model: Width of the stream.
        num_heads: Heads.
        causal: Whether nobody sees the future.
    """

    def __init__(self, d_model: int, num_heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.causal = causal

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        mask = None
        if self.causal:
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.attention(
            x,
            x,
            x,
            key_padding_mask=None if keep is None else ~keep,
            attn_mask=mask,
            is_causal=self.causal,
            need_weights=False,
        )[0]
