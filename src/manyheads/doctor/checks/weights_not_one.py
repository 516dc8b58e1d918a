"""Weights of a query that do not sum to one."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from manyheads.doctor import evidence
from manyheads.doctor.call import Call
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide, holes
from manyheads.doctor.output import weights_of
from manyheads.doctor.path import running
from manyheads.doctor.patient import Patient

PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}
KEEPS = {
    "mul", "imul", "rmul", "div", "idiv", "truediv", "itruediv", "masked_fill", "where", "dropout",
    "to", "float", "type_as", "contiguous", "clone", "nan_to_num", "half", "double", "bfloat16",
    "view", "reshape", "unsqueeze",
}  # fmt: skip
"""What people do to weights between the softmax and the values."""
ALLOWED = 1e-3


def look(patient: Patient) -> Iterator[Sign]:
    """Sum what goes into the product with the values, and what is handed back."""
    context = patient.base.get(patient.facts.context)
    axis = 0 if patient.facts.layout == "length" else 1
    kv_len = context.shape[axis] if isinstance(context, Tensor) else patient.length
    with running(patient.model) as path, _Weights({patient.length, kv_len}, path) as seen:
        output = patient.answer(_masked(patient))
    returned = _returned(patient, output, kv_len)
    if not seen.sums and not returned:
        raise CannotTell("no softmax over keys was seen inside, and no weights are handed back")
    for where, sums in [*seen.sums, *returned]:
        wrong = sums[((sums - 1).abs() > ALLOWED) & (sums.abs() > ALLOWED)]
        if wrong.numel():
            worst = float(wrong[(wrong - 1).abs().argmax()])
            unit = "is what the weights of a query sum to"
            yield Sign(where or type(patient.model).__name__, worst, unit, "1, or 0 for no key")
            return


def _masked(patient: Patient) -> Call:
    """A call with some tokens hidden, where that can be said."""
    try:
        return hide(patient, holes(patient))
    except CannotTell:
        return patient.base


def _returned(patient: Patient, output: Any, kv_len: int) -> list[tuple[str, Tensor]]:
    """Sums above 1 of weights that are handed back; lower ones may have left a sink out."""
    found = weights_of(output, patient.facts.weights, patient.length, kv_len)
    return [
        (f"returned weights, layer {layer}", each.detach().double().sum(dim=-1).clamp(min=1))
        for layer, each in enumerate(found)
        if bool((each >= 0).all())  # scores that are handed back are no weights
    ]


class _Weights(TorchFunctionMode):
    """Follows what a softmax over keys gave until it is multiplied with something."""

    def __init__(self, lengths: set[int], path: list[str]) -> None:
        super().__init__()
        self.lengths, self.path = lengths, path
        self.weights: dict[int, Tensor] = {}
        self.sums: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        weights = next((each for each in args if id(each) in self.weights), None)
        out = func(*args, **kwargs)
        if name == "softmax" and self._is_over_keys(out, *args[1:2], **kwargs):
            self.weights[id(out)] = out
        elif weights is not None and name in PRODUCTS:
            where = self.path[-1] if self.path else ""
            self.sums.append((where, weights.detach().double().sum(dim=-1).flatten()))
        elif weights is not None and name in KEEPS and out.shape[-2:] == weights.shape[-2:]:
            self.weights[id(out)] = out
        return out

    def _is_over_keys(self, out: Tensor, dim: Any = None, **kwargs: Any) -> bool:
        dim = kwargs.get("dim", dim)
        lawful = out.ndim > 2 and set(out.shape[-2:]) <= self.lengths
        return lawful and dim in (-1, out.ndim - 1)


CHECK = Check(
    code="weights_not_one",
    severity="error",
    title="Weights do not sum to one",
    explanation="Something changes the weights between the softmax and the values: a scale or a "
    "mask behind the softmax, a sum over heads. The output shrinks or grows with it.",
    cure="Scale and mask scores before the softmax, and leave weights as they are; average heads, "
    "do not sum them.",
    healthy="weights of each query sum to 1, or to 0 if it sees nobody",
    source="Vaswani et al. 2017, eq. 1 (arXiv:1706.03762)",
    look=look,
    draw=evidence.of_heads,
    symptoms=("scale_missing", "empty_row_mean"),
)
