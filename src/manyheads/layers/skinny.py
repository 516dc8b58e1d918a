"""Products of few rows with a large matrix, by the way that was measured the fastest here.

A step of decoding is little else. What is fastest hangs on the processor, the dtype and the shape,
and no rule says it well: half or twice the time of ``F.linear`` are common.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

MOST_ROWS = 32
"""Up to here a product is skinny: to read the matrix costs more than to compute with it."""

Way = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x (rows, in_features), weight (out_features, in_features) and bias to (rows, out_features)."""


class Skinny:
    """A linear map of few rows, without gradients, on the CPU.

    The first call of a shape times each way on its own arguments, and the fastest serves that shape
    as long as the process lives. Ways differ by rounding, and none keeps a copy of the weight.

    Args:
        weight: (out_features, in_features).
        bias: (out_features,), if any.

    Example:
        >>> import torch
        >>> from manyheads.layers.skinny import Skinny
        >>> weight, x = torch.randn(64, 32), torch.randn(8, 32)
        >>> torch.allclose(Skinny(weight)(x), x @ weight.t(), atol=1e-5)
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._ways: dict[int, Way] = {}

    def __call__(self, x: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        """The map of each row."""
        rows = x.shape[0]
        if rows not in self._ways:
            self._ways[rows] = _known_way(x, self.weight, self.bias)
        return self._ways[rows](x, self.weight, self.bias)


_WAYS: dict[tuple[object, ...], Way] = {}


def _known_way(x: Tensor, weight: Tensor, bias: Tensor | None) -> Way:
    # Numbers of rows of one size share an answer, so that a changing batch is soon known.
    size = (x.shape[0] - 1).bit_length()
    key = size, weight.shape, weight.stride(), weight.dtype, torch.get_num_threads()
    if key not in _WAYS:
        _WAYS[key] = fastest(ways(weight.dtype), x, weight, bias)
    return _WAYS[key]


def ways(dtype: torch.dtype) -> list[Way]:
    """The ways there are, torch's own first."""
    return [F.linear, _turned, _widened] if dtype.itemsize < 4 else [F.linear, _turned]


def fastest(ways: list[Way], x: Tensor, weight: Tensor, bias: Tensor | None) -> Way:
    """The fastest way; the first one unless another surely gains, so that ties are no lottery."""
    least = [float("inf")] * len(ways)
    for _ in range(4):  # in turns, so that whatever else is running disturbs all of them
        for index, way in enumerate(ways):
            start = time.perf_counter()
            way(x, weight, bias)
            least[index] = min(least[index], time.perf_counter() - start)
    best = min(range(len(ways)), key=least.__getitem__)
    return ways[best] if least[best] < _GAIN * least[0] else ways[0]


_GAIN = 0.85


def _turned(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The matrix first, for which BLAS has other kernels."""
    out = torch.mm(weight, x.t()).t()
    return out if bias is None else out + bias


def _widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In fp32, a piece of the matrix at a time, which stays in the cache of a core."""
    columns, step = x.t().float(), max(_PIECE // weight.shape[1], 1)
    out = columns.new_empty(weight.shape[0], x.shape[0])
    for piece, into in zip(weight.split(step), out.split(step), strict=True):
        torch.mm(piece.float(), columns, out=into)
    out = out.t() if bias is None else out.t() + bias
    return out.to(x.dtype)


_PIECE = 2**18
