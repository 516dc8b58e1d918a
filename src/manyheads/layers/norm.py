"""Norms of streams, queries and keys, which neither change the dtype nor are slowed by autocast."""

from typing import Literal

import torch
from torch import Tensor, nn

from manyheads.errors import OptionError, is_named

NormKind = Literal["layer", "rms"]


class RMSNorm(nn.RMSNorm):
    """torch's, computed in the dtype of its weight and given back in that of x.

    Under autocast the two differ; torch warns there and leaves its fused kernel.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """torch's, given back in the dtype of x: autocast would have a cache hold float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


NORMS: dict[str, type[RMSNorm] | type[LayerNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


def norm_of(kind: str) -> type[RMSNorm] | type[LayerNorm]:
    """The norm of this name."""
    if not is_named(kind, NORMS):
        raise OptionError(
            f"a norm must be 'layer' or 'rms'; got {kind!r}. GPT-2 has 'layer', Llama 'rms'."
        )
    return NORMS[kind]


def make_norm(
    kind: str | None,
    head_dim: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Module:
    """The norm of each head's queries or keys that ``qk_norm`` names."""
    if kind is None:
        return nn.Identity()
    if kind == "rms":
        return RMSNorm(head_dim, eps=1e-6, device=device, dtype=dtype)
    if kind == "layer":
        return LayerNorm(head_dim, device=device, dtype=dtype)
    raise OptionError(
        f"qk_norm must be None, 'rms' or 'layer'; got qk_norm={kind!r}. Leave it out for scores "
        f"of plain queries and keys."
    )
