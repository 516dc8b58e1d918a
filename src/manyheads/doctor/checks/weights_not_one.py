"""Weights of a query that do not sum to one."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from manyheads.doctor import evidence
from manyheads.doctor.call import Call
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide, holes
from manyheads.doctor.output import weights_of
from manyheads.doctor.patient import Patient
from manyheads.doctor.weights import kv_len_of, mixed_weights

ALLOWED = 1e-3


def look(patient: Patient) -> Iterator[Sign]:
    """Sum what goes into the product with the values, and what is handed back."""
    mixed, output = mixed_weights(patient, _masked(patient))
    sums = [(each.where, each.weights.double().sum(-1)) for each in mixed if each.axis == -1]
    sums += _returned(patient, output)
    if not sums:
        raise CannotTell("no softmax over keys was seen inside, and no weights are handed back")
    for where, each in sums:
        wrong = each[((each - 1).abs() > ALLOWED) & (each.abs() > ALLOWED)]
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


def _returned(patient: Patient, output: Any) -> list[tuple[str, Tensor]]:
    """Sums above 1 of weights that are handed back; lower ones may have left a sink out."""
    found = weights_of(output, patient.facts.weights, patient.length, kv_len_of(patient))
    return [
        (f"returned weights, layer {layer}", each.detach().double().sum(dim=-1).clamp(min=1))
        for layer, each in enumerate(found)
        if bool((each >= 0).all())  # scores that are handed back are no weights
    ]


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
