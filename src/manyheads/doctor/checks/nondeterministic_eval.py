"""Two calls in eval that differ."""

from collections.abc import Iterator

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.checks.dropout_in_eval import UNSETTLED, spread
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Ask the same with the same random numbers, then with others."""
    first, second = patient.ask(patient.base), patient.ask(patient.base)
    off = float(patient.differs(first, second).max())
    if off:
        unit = "of the output changes between two calls with one seed"
        yield Sign(type(patient.model).__name__, off, unit, "none: nothing is kept between calls")
    elif off := spread(patient):
        unit = "of the output changes with the seed, in eval"
        yield Sign(type(patient.model).__name__, off, unit, "none: eval draws no random numbers")


CHECK = Check(
    code="nondeterministic_eval",
    severity="error",
    title="Two calls in eval differ",
    explanation="The same input gives another output each time, although the model is in eval: it "
    "draws random numbers, or keeps something from one call to the next.",
    cure="Draw random numbers in training only, or from a generator that is seeded for each call; "
    "begin each call from the same state.",
    healthy="bit-identical answers in eval",
    source="pytorch.org/docs/stable/notes/randomness.html",
    look=look,
    symptoms=UNSETTLED,
)
