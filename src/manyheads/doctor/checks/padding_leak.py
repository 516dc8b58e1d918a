"""Padding that reaches real tokens."""

from collections.abc import Iterator

from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.hiding import hide, sides
from manyheads.doctor.locate import first_part
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Change what padding holds, on both sides; then how much of it there is."""
    for hidden in sides(patient):
        before = hide(patient, hidden)
        after = patient.scrambled(hidden, before)
        gap = patient.differs(patient.ask(before), patient.ask(after))
        if patient.has_tokens:
            gap = gap.masked_fill(hidden, 0)
        if gap.any():
            unit = "of the output of real tokens changes with what padding holds"
            yield Sign(_place(patient, gap, hidden, before, after), float(gap.max()), unit, "none")
            return


def _place(patient: Patient, gap: Tensor, hidden: Tensor, before: Call, after: Call) -> str:
    if not patient.has_tokens:
        return f"pooled output of row {int(gap.nonzero()[0, 0])}"
    token = gap.nonzero()[0].tolist()[1]
    column = int(hidden[0].nonzero()[0, 0])
    part = first_part(patient, before, after, ~hidden)
    return f"{part}, output {token} reads padding at {column}"


CHECK = Check(
    code="padding_leak",
    severity="error",
    title="Padding is seen",
    explanation="What stands in the padding changes the outputs of real tokens: a row says "
    "something else when it is padded otherwise, or batched with longer rows.",
    cure="Mask keys by -inf before the softmax, in every layer and head; leave padding out of "
    "means, convolutions and norms over the length.",
    healthy="outputs of real tokens are bit-identical whatever padding holds",
    source="pytorch/pytorch#92554; unslothai/unsloth#3699",
    look=look,
    symptoms=("softmax_axis",),
)
