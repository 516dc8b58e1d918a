"""Scores are multiplied where they should be divided."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient
from manyheads.doctor.scales import SOURCE, signs


def look(patient: Patient) -> Iterator[Sign]:
    """Read by what the scores were multiplied."""
    yield from signs(patient, "sqrt(head_dim)", "sqrt(d_model)")


CHECK = Check(
    code="scale_inverse",
    severity="error",
    title="Scores are multiplied where they should be divided",
    explanation="Scores are multiplied by sqrt(head_dim) instead of divided by it: the softmax "
    "saturates from the first step, and its gradient vanishes.",
    cure="Multiply by head_dim ** -0.5; the scale of scaled_dot_product_attention is a factor, "
    "not a divisor.",
    healthy="scores times 1 / sqrt(head_dim)",
    source=SOURCE,
    look=look,
    draw=evidence.of_heads,
    symptoms=(
        "saturated",
        "gradient_dead",
    ),
)
