"""Products of few rows with a large matrix, by the way that was measured the fastest here.

A step of decoding is little else. What is fastest hangs on the processor, the dtype and the shape,
and no rule says it well: half or twice the time of ``F.linear`` are common.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_ROWS = 32
"""Up to here a product is skinny: reading the matrix costs more than computing with it."""

Way = Callable[[Tensor, Tensor], Tensor]
"""Rows (rows, in_features) and a matrix (out_features, in_features) to (rows, out_features)."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, for few rows, without gradients, on the CPU.

    The first call of a shape times every way on its own arguments, and the fastest serves that
    shape as long as the process lives. Ways differ by rounding alone, and by no memory to speak of.

    Args:
        x: (..., in_features).
        weight: (out_features, in_features), of the dtype of x.
        bias: (out_features,).
    """
    rows = x.numel() // x.shape[-1]
    # Numbers of rows of one size share an answer, so that a changing batch is soon known.
    key = ((rows - 1).bit_length(), weight.shape, weight.stride(), weight.dtype, _threads())
    way = _CHOSEN.get(key)
    if way is None:
        way = _CHOSEN.setdefault(key, _fastest(x.reshape(rows, -1), weight))
    if way is F.linear:
        return F.linear(x, weight, bias)
    out = way(x.reshape(rows, -1), weight).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


_CHOSEN: dict[tuple[object, ...], Way] = {}
_threads = torch.get_num_threads


def _turned(x: Tensor, weight: Tensor) -> Tensor:
    """The matrix first, for which BLAS has another kernel."""
    return (weight @ x.t()).t()


def _widened(x: Tensor, weight: Tensor) -> Tensor:
    """In fp32, a piece of the matrix at a time, which stays in the cache of a core."""
    columns, step = x.t().float(), max(_PIECE // weight.shape[1], 1)
    out = columns.new_empty(weight.shape[0], x.shape[0])
    for piece, into in zip(weight.split(step), out.split(step), strict=True):
        torch.mm(piece.float(), columns, out=into)
    return out.t().to(x.dtype)


_PIECE = 2**18
_GAIN = 0.9


def _ways(dtype: torch.dtype) -> list[Way]:
    return [_turned, _widened] if dtype in (torch.bfloat16, torch.float16) else [_turned]


def _fastest(x: Tensor, weight: Tensor) -> Way:
    # Torch's own way unless another surely gains: what ties should not hang on chance.
    best, way = _GAIN * _seconds(F.linear, x, weight), F.linear
    for other in _ways(weight.dtype):
        seconds = _seconds(other, x, weight)
        if seconds < best:
            best, way = seconds, other
    return way


def _seconds(way: Way, x: Tensor, weight: Tensor) -> float:
    """The least time of a few calls."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        way(x, weight)
        times.append(time.perf_counter() - start)
    return min(times)
