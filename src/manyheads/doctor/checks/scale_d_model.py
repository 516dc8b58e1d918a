"""Scores are scaled by the width of the model."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient
from manyheads.doctor.scales import SOURCE, signs


def look(patient: Patient) -> Iterator[Sign]:
    """Read by what the scores were multiplied."""
    yield from signs(patient, "1 / sqrt(d_model)", "1 / d_model")


CHECK = Check(
    code="scale_d_model",
    severity="error",
    title="Scores are scaled by the width of the model",
    explanation="Scores are divided by sqrt(d_model), or by d_model, instead of sqrt(head_dim): "
    "with several heads they are too small, and attention stays near uniform.",
    cure="Divide by the square root of the width of one head: head_dim = d_model // num_heads.",
    healthy="scores times 1 / sqrt(head_dim)",
    source=SOURCE,
    look=look,
    draw=evidence.of_heads,
)
