"""Products of few rows with large matrices, by the way that was measured the fastest here.

A step of decoding is little else. What is fastest hangs on the processor, the dtype and the shape,
and no rule says it well: half or twice the time of ``F.linear`` are common.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.layers.copies import ORDERS, Copies, Copy, Map, Order, can_be_copied

MOST_ROWS = 32
"""Up to here a product is skinny: to read the matrix costs more than to compute with it."""

PATIENCE = 16
"""Calls after which a map is worth a copy in another order, if that gains."""

Way = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x (rows, in_features), weight (out_features, in_features) and bias to (rows, out_features)."""


class Skinny:
    """One linear map of few rows, or several side by side, without gradients, on the CPU.

    The first call of a shape times each way on its own arguments, and the fastest serves that shape
    as long as the process lives. So does, after some calls, a `Copy` of the weights in another
    order where it gains. Ways differ by rounding, and a change of a weight that torch counts is
    seen by the next call.

    Args:
        maps: A weight (out_features, in_features) and a bias (out_features,), if any, of each.

    Example:
        >>> import torch
        >>> from manyheads.layers.skinny import Skinny
        >>> weight, x = torch.randn(64, 32), torch.randn(8, 32)
        >>> torch.allclose(Skinny((weight, None))(x), x @ weight.t(), atol=1e-5)
        True
    """

    def __init__(self, *maps: Map) -> None:
        self.maps = maps
        self._ways: dict[int, list[Way]] = {}
        self._calls: dict[int, int] = {}
        self._copies: dict[int, Copy] = {}

    def __call__(self, x: Float[Tensor, "rows in_features"]) -> Float[Tensor, "rows out_features"]:
        """The maps of each row side by side, in the dtype of x: that of the weights, or wider."""
        # Numbers of rows of one size share an answer, so that a changing batch is soon known.
        size = (x.shape[0] - 1).bit_length()
        copy = self._copies.get(size)
        if copy is not None and copy.is_new(self.maps):
            return copy(x)
        calls = self._calls[size] = self._calls.get(size, 0) + 1
        if calls in (1, PATIENCE):
            self._look(x, size, may_copy=calls == PATIENCE)
        return self._plain(x, size)

    def _plain(self, x: Tensor, size: int) -> Tensor:
        narrow = x.to(self.maps[0][0].dtype)
        products = [
            way(narrow, *each) for way, each in zip(self._ways[size], self.maps, strict=True)
        ]
        return (products[0] if len(products) == 1 else torch.cat(products, dim=1)).to(x.dtype)

    def _look(self, x: Tensor, size: int, *, may_copy: bool) -> None:
        """Choose the ways of the first call, and a copy for those to come."""
        if size not in self._ways:
            narrow = x.to(self.maps[0][0].dtype)
            self._ways[size] = [_known_way(narrow, size, *each) for each in self.maps]
        if x.dtype != torch.float32 or not can_be_copied(self.maps):
            return
        key = _key(size, *(weight for weight, _ in self.maps))
        if key not in _ORDERS and may_copy and _COPIES.has_room(self.maps):
            _ORDERS[key] = self._best_order(x, size)
        order = _ORDERS.get(key)
        if order is not None:
            copy = _COPIES.find(self.maps, order)
            if copy is None and may_copy:
                copy = _COPIES.make(self.maps, order)
            if copy is not None:
                self._copies[size] = copy

    def _best_order(self, x: Tensor, size: int) -> Order | None:
        fit = [order for order in ORDERS if all(order.fits(weight) for weight, _ in self.maps)]
        copies = (partial(Copy(self.maps, order), x) for order in fit)
        best = fastest([partial(self._plain, x, size), *copies])
        return fit[best - 1] if best else None


_WAYS: dict[tuple[object, ...], Way] = {}
_ORDERS: dict[tuple[object, ...], Order | None] = {}
_COPIES = Copies()


def _key(size: int, *weights: Tensor) -> tuple[object, ...]:
    layout = tuple((weight.shape, weight.stride(), weight.dtype) for weight in weights)
    return size, layout, torch.get_num_threads()


def _known_way(x: Tensor, size: int, weight: Tensor, bias: Tensor | None) -> Way:
    key = _key(size, weight)
    if key not in _WAYS:
        known = ways(weight.dtype)
        _WAYS[key] = known[fastest([partial(way, x, weight, bias) for way in known])]
    return _WAYS[key]


def ways(dtype: torch.dtype) -> list[Way]:
    """The ways without a copy, torch's own first."""
    return [F.linear, _turned, _widened] if dtype.itemsize < 4 else [F.linear, _turned]


def fastest(calls: Sequence[Callable[[], object]]) -> int:
    """The fastest call; the first unless another surely gains, so that ties are no lottery."""
    least = [float("inf")] * len(calls)
    for _ in range(4):  # in turns, so that whatever else is running disturbs all of them
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            least[index] = min(least[index], time.perf_counter() - start)
    best = min(range(len(calls)), key=least.__getitem__)
    return best if least[best] < _GAIN * least[0] else 0


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
