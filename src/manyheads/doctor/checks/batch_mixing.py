"""Rows of a batch that read one another."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.locate import first_part
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Change one row and look at the others; then ask for a row alone."""
    if patient.batch < 2:
        raise CannotTell("the example has one row, and the model did not take more")
    if crossing := next(_crossings(patient), None):
        call, changed, gap = crossing
        where = _row(patient, changed)
        hit = gap.nonzero()[0].tolist()
        part = first_part(patient, patient.base, call, ~where)
        place = f"{part}, row {hit[0]} reads row {changed}"
        unit = "of the output of a row changes with another row"
        healthy = "none: rows are strangers"
        yield Sign(place, float(gap.max()), unit, healthy, _advice(patient))
        return
    for subject in (patient, patient.awake):
        gap = subject.differs(_alone(subject), subject.out, allowed=subject.close)
        if gap.any():
            row = gap.nonzero()[0].tolist()[0]
            unit = "of the output of a row changes when it is asked alone"
            yield Sign(f"row {row}", float(gap.max()), unit, "rounding only, below 1e-4")
            return


def _crossings(patient: Patient) -> Iterator[tuple[Call, int, Tensor]]:
    """Calls with another row in them that other rows notice, the row, and by how much."""
    for changed in (0, patient.batch - 1):
        where = _row(patient, changed)
        call = patient.scrambled(where) if patient.x.ndim <= 3 else _other_image(patient, changed)
        gap = patient.differs(patient.out, patient.ask(call))
        gap[changed] = 0
        if gap.any():
            yield call, changed, gap


def _row(patient: Patient, row: int) -> Tensor:
    where = torch.zeros(patient.batch, patient.length, dtype=torch.bool)
    where[row] = True
    return where


def _advice(patient: Patient) -> str:
    """What to declare, if rows are strangers once the first two axes are read the other way."""
    swapped: dict[Any, Any] = {"batch": "length", "length": "batch"}
    other = swapped.get(patient.facts.layout)
    if other is None or patient.x.ndim > 3 or patient.length < 2:
        return ""
    # Made anew, so that it keeps no answer that was read in the layout before.
    turned = replace(patient, facts=replace(patient.facts, layout=other))
    if any(_crossings(turned)):
        return ""
    axes = "(length, batch, ...)" if other == "length" else "(batch, length, ...)"
    return (
        f"Read as {axes} its rows are strangers: if that is how its input and output are meant to "
        f'lie, declare Facts(layout="{other}") and examine it again. If not:'
    )


def _other_image(patient: Patient, row: int) -> Call:
    kind = patient.kinds[patient.facts.x]
    drawn = kind.draw(patient.x, torch.Generator().manual_seed(4000 + patient.seed))
    x = patient.x.clone()
    x[row] = drawn[row]
    return patient.base.put(patient.facts.x, x)


def _alone(patient: Patient) -> Tensor:
    """Every row's answer when the batch is that row alone."""
    axis = 1 if patient.facts.layout == "length" else 0
    streams = [
        patient.base.get(slot)
        for slot in (patient.facts.x, patient.facts.context, patient.facts.value)
    ]

    def row_of(tensor: Tensor, row: int) -> Tensor:
        along = axis if any(tensor is each for each in streams) else 0
        own = tensor.ndim > 1 and tensor.shape[along] == patient.batch
        return tensor.narrow(along, row, 1) if own else tensor

    answers = []
    for row in range(patient.batch):
        call = patient.base.map(lambda each, row=row: row_of(each, row))  # type: ignore[misc]
        answers.append(patient.ask(call))
    return torch.cat(answers)


CHECK = Check(
    code="batch_mixing",
    severity="error",
    title="Rows of a batch read one another",
    explanation="What the model says of one row depends on the other rows. Often the batch and the "
    "length were taken for each other: a layer that wants (length, batch, d_model) was given "
    "(batch, length, d_model), or a reshape merged the two.",
    cure="Look at the named part for batch_first, for a view or reshape that crosses the first two "
    "axes, and for statistics taken over the batch.",
    healthy="rows that are asked alone and in any company say the same",
    source="torch.nn.MultiheadAttention, batch_first; pytorch/opacus#825",
    look=look,
    symptoms=(
        "future_leak",
        "padding_leak",
        "heads_merged_wrong",
        "softmax_axis",
        "no_position",
        "document_leak",
        "cache_mismatch",
        "mask_wrong_axis",
        "left_pad_position",
    ),
)
