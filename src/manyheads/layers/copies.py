"""Copies of weights in the order in which a processor reads them the fastest."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Map = tuple[Tensor, Tensor | None]
"""A weight (out_features, in_features) and a bias (out_features,), if any."""

MOST_BYTES = 2**30
"""What all copies of a process may take together; further weights have none."""


class Order(NamedTuple):
    """An order of a weight's numbers, and the product that reads it."""

    name: str
    fits: Callable[[Tensor], bool]
    """Whether a weight can be had in this order without changing its products."""
    arrange: Callable[[Tensor], Any]
    multiply: Callable[[Tensor, Any, Tensor | None], Tensor]


class Copy:
    """The weights of some maps side by side, in another order.

    Args:
        maps: Maps of the same ``in_features``.
        order: The order.
    """

    def __init__(self, maps: Sequence[Map], order: Order) -> None:
        self.order = order
        weight, self.bias = _side_by_side(maps)
        self.bytes = weight.nbytes
        self._held = order.arrange(weight)
        self._versions, self._sums = versions(chain(*maps)), _sums(maps)

    def __call__(self, x: Tensor) -> Tensor:
        """The maps of each row, in fp32: (rows, in_features) to (rows, all out_features)."""
        return self.order.multiply(x, self._held, self.bias)

    def is_new(self, maps: Sequence[Map]) -> bool:
        """Whether torch has counted no change of the maps since they were copied."""
        return versions(chain(*maps)) == self._versions

    def is_true(self, maps: Sequence[Map]) -> bool:
        """Whether no bit of the maps has changed, as far as sums along both axes can tell.

        It reads all of them once, and sees what goes past torch's count, such as ``weight.data``.
        """
        now = _sums(maps)
        return self.is_new(maps) and all(map(torch.equal, now, self._sums))


class Copies:
    """The copies that are kept: one at most of each map, for as long as its weight lives."""

    def __init__(self) -> None:
        self._kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def find(self, maps: Sequence[Map], order: Order) -> Copy | None:
        """The copy of these maps in this order, if there is one and it is true."""
        copy: Copy | None = self._kept.get(maps[0][0])
        return copy if copy is not None and copy.order is order and copy.is_true(maps) else None

    def make(self, maps: Sequence[Map], order: Order) -> Copy | None:
        """A copy, in place of an older one; None where there is no room, or the order unfit."""
        self._kept.pop(maps[0][0], None)
        if not self.has_room(maps) or not all(order.fits(weight) for weight, _ in maps):
            return None
        self._kept[maps[0][0]] = copy = Copy(maps, order)
        return copy

    def has_room(self, maps: Sequence[Map]) -> bool:
        """Whether a copy of these maps may be kept beside the others."""
        # A list in one go: another thread may keep a copy of its own meanwhile.
        taken = sum(copy.bytes for copy in list(self._kept.data.values()))
        return taken + sum(weight.nbytes for weight, _ in maps) <= MOST_BYTES


def can_be_copied(maps: Sequence[Map]) -> bool:
    """Whether a change of these maps would be seen."""
    return all(
        weight.is_contiguous()
        and weight.numel() > 0
        and weight.shape[1] * weight.element_size() % 8 == 0
        and weight.storage_offset() * weight.element_size() % 8 == 0
        and not weight.is_inference()
        for weight, _ in maps
    )


def _side_by_side(maps: Sequence[Map]) -> tuple[Tensor, Tensor | None]:
    weights, biases = [m[0].detach() for m in maps], [m[1] for m in maps]
    weight = weights[0] if len(maps) == 1 else torch.cat(weights)
    if all(bias is None for bias in biases):
        return weight, None
    wide = (
        weight.new_zeros(len(w), dtype=torch.float32) if b is None else b.detach().float()
        for w, b in zip(weights, biases, strict=True)
    )
    return weight, torch.cat(tuple(wide))


def versions(tensors: Iterable[Tensor | None]) -> list[tuple[object, int]]:
    """What changes with every change of tensors that torch counts.

    Of tensors made under ``torch.inference_mode`` it counts none: they never look the same twice.
    """
    return [
        (object() if x.is_inference() else x._version, x.data_ptr())
        for x in tensors
        if x is not None
    ]


def _sums(maps: Sequence[Map]) -> list[Tensor]:
    # A sum of bits is exact, and rows or columns that changed places change one of the two.
    bits = [weight.detach().view(torch.int64) for weight, _ in maps]
    sums = [b.sum(axis) for b in bits for axis in (0, 1)]
    return sums + [bias.detach().clone() for _, bias in maps if bias is not None]


def _multiply_turned(x: Tensor, held: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, held) if bias is None else torch.addmm(bias, x, held)


def _arrange_blocks(weight: Tensor) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight)  # a torch without oneDNN lacks it


def _multiply_blocks(x: Tensor, held: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, held, bias, "none", [], "")


def _multiply_panels(x: Tensor, held: Any, bias: Tensor | None) -> Tensor:
    return torch.fbgemm_linear_fp16_weight_fp32_activation(x, held, bias)


def _arrange_panels(weight: Tensor) -> Any:
    with warnings.catch_warnings():
        # torch says once in a process that a later release will name them otherwise.
        warnings.simplefilter("ignore")
        held = torch.fbgemm_pack_gemm_matrix_fp16(weight.float())
        _multiply_panels(weight.new_zeros(1, weight.shape[1], dtype=torch.float32), held, None)
    return held


def _is_fp32(weight: Tensor) -> bool:
    return weight.dtype == torch.float32


def _fits_blocks(weight: Tensor) -> bool:
    return _is_fp32(weight) and torch.backends.mkldnn.is_available()


def _fits_fp16(weight: Tensor) -> bool:
    """Whether numbers in fp16 are the same but for less than a 16-bit product rounds away."""
    if weight.dtype.itemsize != 2 or "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    wide = weight.detach().float()
    lost = wide.half().float() - wide
    # Of each output and each input, for an input may be as large as its weights are small.
    return all(bool((lost.norm(dim=dim) <= 2.0**-16 * wide.norm(dim=dim)).all()) for dim in (0, 1))


ORDERS = (
    Order("in columns", _is_fp32, lambda weight: weight.t().contiguous(), _multiply_turned),
    Order("in oneDNN's blocks", _fits_blocks, _arrange_blocks, _multiply_blocks),
    Order("in FBGEMM's panels of fp16", _fits_fp16, _arrange_panels, _multiply_panels),
)  # fmt: skip
