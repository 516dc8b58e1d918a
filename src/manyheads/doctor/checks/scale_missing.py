"""Scores that are not scaled."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient
from manyheads.doctor.scales import SOURCE, signs


def look(patient: Patient) -> Iterator[Sign]:
    """Read by what the scores were multiplied."""
    yield from signs(patient, "1")


CHECK = Check(
    code="scale_missing",
    severity="error",
    title="Scores are not scaled",
    explanation="Scores are plain dot products, whose variance grows with the width of a head. The "
    "softmax saturates on one key, its gradient vanishes, and the loss does not fall.",
    cure="Multiply scores by head_dim ** -0.5. A model that was trained without, as T5 was, "
    "declares it: Facts(scale=1.0).",
    healthy="scores times 1 / sqrt(head_dim)",
    source=SOURCE,
    look=look,
    draw=evidence.of_heads,
    symptoms=("saturated", "gradient_dead"),
)
