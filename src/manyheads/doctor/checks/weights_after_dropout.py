"""Returned weights that dropout has been at."""

from collections.abc import Iterator

from torch import Tensor

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.output import weights_of
from manyheads.doctor.patient import Patient
from manyheads.doctor.training import in_training


def look(patient: Patient) -> Iterator[Sign]:
    """Sum the weights of each query, in eval and in training."""
    settled = _sums(patient, patient.answer(patient.base))
    if not settled:
        raise CannotTell("the answer holds no weights of this shape")
    if max(float((each - 1).abs().max()) for each in settled) > 1e-3:
        return  # rows that do not sum to 1 in eval either are another matter
    for layer, sums in enumerate(_sums(patient, in_training(patient, patient.base))):
        off = float((sums - 1).abs().max())
        if off > 1e-3:
            unit = "is how far a query's weights sum from 1 in training"
            yield Sign(f"returned weights, layer {layer}", off, unit, "0, as in eval")
            return


def _sums(patient: Patient, output: object) -> list[Tensor]:
    context = patient.base.get(patient.facts.context)
    axis = 0 if patient.facts.layout == "length" else 1
    kv_len = context.shape[axis] if isinstance(context, Tensor) else patient.length
    found = weights_of(output, patient.facts.weights, patient.length, kv_len)
    found = found or weights_of(output, patient.facts.weights, patient.length, patient.length)
    return [each.detach().double().sum(dim=-1) for each in found]


CHECK = Check(
    code="weights_after_dropout",
    severity="warning",
    title="Returned weights are those after dropout",
    explanation="The weights that the layer hands back in training are the dropped and rescaled "
    "copy: rows do not sum to 1, and a weight can exceed 1. Pictures and losses made of them are "
    "noise.",
    cure="Return the weights before dropout, and apply dropout to a copy: dropout(weights) @ v.",
    healthy="rows sum to 1 in training too",
    source="pytorch/pytorch#42929",
    look=look,
    needs=("weights",),
)
