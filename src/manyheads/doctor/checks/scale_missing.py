"""Scores that are not scaled."""

from collections.abc import Callable, Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import Observed, observed
from manyheads.doctor.patient import Patient

NEAR = 0.01
"""How far a scale may be from a number to be it, as a share."""
ALIKE = ("scale_d_model", "scale_twice", "scale_inverse", "scale_missing")
SOURCE = "Vaswani et al. 2017, section 3.2.1 (arXiv:1706.03762)"


def look(patient: Patient) -> Iterator[Sign]:
    """Read by what the scores were multiplied."""
    yield from signs(patient, lambda each: 1.0)


def signs(patient: Patient, wrong: Callable[[Observed], float]) -> Iterator[Sign]:
    """A sign for each call whose scale is the wrong one and not the right one."""
    calls = observed(patient)
    known = [each for each in calls if each.before is not None]
    if not known:
        raise CannotTell("the projections of queries and keys were not recognised inside")
    biased = any(each.call.bias is not None for each in calls)
    for each in known:
        assert each.before is not None
        scale = each.before * each.call.scale
        right = patient.facts.scale or each.head_dim**-0.5
        if _near(scale, right) or not _near(scale, wrong(each)):
            continue
        if biased and _near(scale, 1.0):
            raise CannotTell("scores with a bias may go unscaled on purpose, as in T5")
        unit = f"multiplies the scores of heads of {each.head_dim}"
        yield Sign(each.where, scale, unit, f"{right:.3g}, 1 / sqrt(head_dim)")


def _near(a: float, b: float) -> bool:
    return abs(a / b - 1) < NEAR


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
