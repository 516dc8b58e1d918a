"""Attention in float64 and numpy, its gradients by hand: what the library must agree with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import manyheads as mh

# How far a result may lie off, as a share of the largest number around it.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-7,
}

# Backends that leave pairs out refuse much of what is asked here; the laws hold them to these two.
every_backend = pytest.mark.parametrize("backend", ["fused", "chunked", "reference"])
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])


def near(got: Tensor, expected: Any, *, share: float = 1.0) -> None:
    """Compare with exact numbers, as closely as the dtype allows.

    Args:
        got: What the library gave.
        expected: Float64 numbers.
        share: The tolerance as a multiple of the usual one, which is that of an output.
    """
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    size = max(1.0, expected[expected.isfinite()].abs().max().item()) if expected.numel() else 1.0
    atol = share * size * TOLERANCE[got.dtype]
    torch.testing.assert_close(got.detach().double(), expected, rtol=0, atol=atol)


@dataclass(frozen=True, eq=False)
class Exact:
    """One call of attention, its results, and its gradients for an upstream gradient.

    Args:
        q: (batch, heads, q_len, head_dim).
        k: (batch, kv_heads, kv_len, head_dim).
        v: (batch, kv_heads, kv_len, value_dim).
        upstream: (batch, heads, q_len, value_dim), the gradient of the output.
        allow: bool, broadcastable to (batch, heads, q_len, kv_len), True = may see.
        bias: Added to the scores.
        scale: Multiplies the scores; None means head_dim ** -0.5.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    upstream: np.ndarray
    allow: np.ndarray | None = None
    bias: np.ndarray | float = 0.0
    scale: float | None = None

    @property
    def _scale(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def _group(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    @property
    def scores(self) -> np.ndarray:
        scores = self.q @ self.k.repeat(self._group, axis=1).mT * self._scale + self.bias
        return scores if self.allow is None else np.where(self.allow, scores, -np.inf)

    @property
    def lse(self) -> np.ndarray:
        peak = self.scores.max(axis=-1, keepdims=True)
        shift = np.where(np.isfinite(peak), peak, 0.0)
        total = np.exp(self.scores - shift).sum(axis=-1, keepdims=True)
        return np.where(total == 0, -np.inf, np.log(np.where(total == 0, 1.0, total)) + shift)

    @property
    def weights(self) -> np.ndarray:
        return np.exp(self.scores - np.where(np.isfinite(self.lse), self.lse, 0.0))

    @property
    def output(self) -> np.ndarray:
        return self.weights @ self.v.repeat(self._group, axis=1)

    @property
    def gradients(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of (output * upstream).sum() by q, k and v."""
        weights = self.weights
        of_weights = self.upstream @ self.v.repeat(self._group, axis=1).mT
        mean = (of_weights * weights).sum(axis=-1, keepdims=True)
        of_scores = weights * (of_weights - mean) * self._scale
        return (
            of_scores @ self.k.repeat(self._group, axis=1),
            self._per_kv_head(of_scores.mT @ self.q),
            self._per_kv_head(weights.mT @ self.upstream),
        )

    def _per_kv_head(self, gradient: np.ndarray) -> np.ndarray:
        batch, _, *rest = gradient.shape
        return gradient.reshape(batch, -1, self._group, *rest).sum(axis=2)

    def agrees(
        self,
        dtype: torch.dtype = torch.float64,
        backend: str = "reference",
        mask: mh.Mask | Tensor | None = None,
        **options: Any,
    ) -> None:
        """Ask the library the same, and compare output and gradients with the exact ones.

        With backend="reference" also the output and gradients beside the weights, and the weights.
        """
        options |= {"backend": backend} | ({} if self.scale is None else {"scale": self.scale})
        q, k, v = (
            torch.tensor(x, dtype=dtype, requires_grad=True) for x in (self.q, self.k, self.v)
        )
        self._compare(mh.attention(q, k, v, mask, **options), (q, k, v))
        if backend == "reference":
            output, weights = mh.attention_with_weights(q, k, v, mask, **options)
            near(weights, self.weights)
            self._compare(output, (q, k, v))

    def _compare(self, output: Tensor, inputs: tuple[Tensor, ...]) -> None:
        assert output.dtype == inputs[0].dtype
        near(output, self.output)
        upstream = torch.tensor(self.upstream, dtype=output.dtype)
        found = torch.autograd.grad(output, inputs, upstream)
        for gradient, expected in zip(found, self.gradients, strict=True):
            near(gradient, expected, share=2)  # of numbers that were rounded already, and summed
