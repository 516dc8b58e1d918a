"""Norms of queries and keys, which are neither moved to another dtype nor slowed by autocast."""

from torch import Tensor, nn


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
