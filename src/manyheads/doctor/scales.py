"""By what scores are multiplied, and the formula that gives such a number."""

import math
from collections.abc import Callable, Iterator

from manyheads.doctor.check import CannotTell, Sign
from manyheads.doctor.inside import Observed, observed
from manyheads.doctor.patient import Patient

NEAR = 0.01
"""How far a scale may be from a number to be it, as a share."""
SOURCE = "Vaswani et al. 2017, section 3.2.1 (arXiv:1706.03762)"

FORMULAS: dict[str, Callable[[Observed], float]] = {
    "1": lambda each: 1.0,
    "1 / sqrt(d_model)": lambda each: each.d_model**-0.5,
    "1 / head_dim": lambda each: 1 / each.head_dim,
    "1 / d_model": lambda each: 1 / each.d_model,
    "1 / sqrt(head_dim * d_model)": lambda each: (each.head_dim * each.d_model) ** -0.5,
    "sqrt(head_dim)": lambda each: each.head_dim**0.5,
    "sqrt(d_model)": lambda each: each.d_model**0.5,
    "head_dim ** -0.25": lambda each: each.head_dim**-0.25,
    "head_dim ** -1.5": lambda each: each.head_dim**-1.5,
}
"""What people write in the place of 1 / sqrt(head_dim), the likeliest first of those that agree."""


def signs(patient: Patient, *wrong: str) -> Iterator[Sign]:
    """A sign for each call whose scale is by one of these formulas, and not the right one.

    Raises:
        CannotTell: If no scale could be read, or one is by no formula that is known to be wrong.
    """
    calls = observed(patient)
    known = [each for each in calls if each.before is not None]
    if not known:
        raise CannotTell("the projections of queries and keys were not recognised inside")
    biased = any(each.call.bias is not None for each in calls)
    found, unknown = [], ""
    for each in known:
        assert each.before is not None
        scale = each.before * each.call.scale
        right = patient.facts.scale or each.head_dim**-0.5
        if _near(scale, right):
            continue
        formula = closest(each, scale)
        number = FORMULAS[formula](each)
        if not _near(scale, number):
            unknown = (
                f"scores of {each.where} are multiplied by {scale:.3g}, which is neither "
                f"{right:.3g}, 1 / sqrt(head_dim), nor a usual mistake (the closest is "
                f"{number:.3g}, {formula}): declare Facts(scale=...) if it is meant"
            )
        elif formula in wrong:
            if biased and formula == "1":
                raise CannotTell("scores with a bias may go unscaled on purpose, as in T5")
            name = "" if formula == "1" else f"= {formula} "
            unit = f"{name}multiplies the scores of heads of {each.head_dim}"
            said = ", as declared" if patient.facts.scale else " = 1 / sqrt(head_dim)"
            found.append(Sign(each.where, scale, unit, f"{right:.3g}{said}"))
    if unknown and not found:
        raise CannotTell(unknown)
    yield from found


def closest(each: Observed, scale: float) -> str:
    """The formula whose number is the closest to a scale."""
    return min(FORMULAS, key=lambda name: round(_apart(scale, FORMULAS[name](each)), 2))


def _near(a: float, b: float) -> bool:
    return _apart(a, b) < 1 + NEAR


def _apart(a: float, b: float) -> float:
    """How many times larger one of two numbers is."""
    return max(a / b, b / a) if a > 0 else math.inf
