"""The mean of all values where a query may see nobody."""

from collections.abc import Iterator

import torch

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Hide all keys, and see whether they are read all the same."""
    if not patient.has_tokens:
        raise CannotTell("the output is one for a whole row")
    every = torch.ones(patient.batch, patient.length, dtype=torch.bool)
    call = hide(patient, every)
    out = patient.ask(call)
    if out.isnan().any():
        return
    last = patient.tokens(-1)
    gap = patient.differs(out, patient.ask(patient.scrambled(last, call))).masked_fill(last, 0)
    first = patient.tokens(0)
    back = patient.differs(out, patient.ask(patient.scrambled(first, call))).masked_fill(first, 0)
    off = max(float(gap.max()), float(back.max()))
    if off:
        yield Sign("a row without a key", off, "of its output comes from hidden tokens", "none")


CHECK = Check(
    code="empty_row_mean",
    severity="note",
    title="A query that sees nobody gets the mean of all values",
    explanation="Hidden scores are filled by a finite number. Where all keys of a query are hidden "
    "they are all equal, and the softmax gives each of them the same weight: the output is the "
    "mean of what should not be seen.",
    cure="Set the weights to 0 where hidden after the softmax, or make sure that no query is "
    "without a key.",
    healthy="a row without a key is 0",
    source="pytorch/pytorch#103749",
    look=look,
)
