"""Scores are scaled twice."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient
from manyheads.doctor.scales import SOURCE, signs


def look(patient: Patient) -> Iterator[Sign]:
    """Read by what the scores were multiplied."""
    yield from signs(patient, "1 / head_dim", "1 / sqrt(head_dim * d_model)", "head_dim ** -1.5")


CHECK = Check(
    code="scale_twice",
    severity="error",
    title="Scores are scaled twice",
    explanation="Scores are divided by head_dim instead of its square root, or by one root after "
    "another: two places scale, often a query that is scaled before a function that scales again. "
    "Attention stays near uniform.",
    cure="Scale in one place. scaled_dot_product_attention scales by itself; pass scale=1.0 if "
    "queries were scaled before. If 1 / head_dim is meant, declare Facts(scale=...).",
    healthy="scores times 1 / sqrt(head_dim)",
    source=SOURCE,
    look=look,
    draw=evidence.of_heads,
)
