"""What hand-written attention multiplies its values by."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from manyheads.doctor.call import Call
from manyheads.doctor.path import running
from manyheads.doctor.patient import Patient

PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}
KEEPS = {
    "mul", "imul", "rmul", "div", "idiv", "truediv", "itruediv", "masked_fill", "where", "dropout",
    "to", "float", "type_as", "contiguous", "clone", "nan_to_num", "half", "double", "bfloat16",
    "view", "reshape", "unsqueeze",
}  # fmt: skip
"""What people do to weights between the softmax and the values."""


@dataclass(frozen=True)
class Mixed:
    """Weights on their way into the product with the values.

    Args:
        where: The module that multiplies.
        weights: (..., q_len, kv_len).
        axis: The axis of the softmax, counted from the end.
    """

    where: str
    weights: Tensor
    axis: int


def mixed_weights(patient: Patient, call: Call) -> tuple[list[Mixed], Any]:
    """The weights of each softmax over scores that can be followed, and the model's answer."""
    lengths = {patient.length, kv_len_of(patient)}
    with running(patient.model) as path, _Following(lengths, path) as seen:
        output = patient.answer(call)
    return seen.mixed, output


def kv_len_of(patient: Patient) -> int:
    """Tokens that are attended to."""
    context = patient.base.get(patient.facts.context)
    axis = 0 if patient.facts.layout == "length" else 1
    return context.shape[axis] if isinstance(context, Tensor) else patient.length


class _Following(TorchFunctionMode):
    def __init__(self, lengths: set[int], path: list[str]) -> None:
        super().__init__()
        self.lengths, self.path = lengths, path
        self.weights: dict[int, tuple[Tensor, int]] = {}
        self.mixed: list[Mixed] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        weights, axis = next(self._known(args), (None, 0))
        out = func(*args, **kwargs)
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if dim is not None and out.ndim > 2 and set(out.shape[-2:]) <= self.lengths:
                self.weights[id(out)] = out, dim if dim < 0 else dim - out.ndim
        elif weights is not None and name in PRODUCTS:
            self.mixed.append(Mixed(self.path[-1] if self.path else "", weights.detach(), axis))
        elif weights is not None and name in KEEPS and out.shape[-2:] == weights.shape[-2:]:
            self.weights[id(out)] = out, axis
        return out

    def _known(self, args: Any) -> Iterator[tuple[Tensor, int]]:
        yield from (self.weights[id(each)] for each in args if id(each) in self.weights)
