"""Positions that count padding at the beginning of a row."""

from collections.abc import Iterator

from torch import Tensor

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.decoding import chunk
from manyheads.doctor.hiding import hide
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Compare rows padded on the left with the same rows alone."""
    if not patient.has_tokens:
        raise CannotTell("the output is one for a whole row")
    given = patient.call.get(patient.facts.padding)
    real = patient.facts.real
    if not isinstance(given, Tensor) or real is None or not (given[:, 0] != real).any():
        raise CannotTell("no row of the example begins with padding")
    count = max(1, patient.length // 3)
    hidden = patient.tokens(slice(0, count))
    padded = hide(patient, hidden)
    positions = padded.get(patient.facts.positions)
    alone = hide(patient, patient.tokens())
    if isinstance(positions, Tensor):  # they are given, and the caller gives them right
        padded = padded.put(patient.facts.positions, (positions - count).clamp(min=0))
    alone = chunk(patient, alone, count, patient.length)
    if isinstance(positions, Tensor):
        alone = alone.put(patient.facts.positions, positions[..., : patient.length - count])
    slot = patient.facts.padding
    alone = alone.put(slot, alone.get(slot)[..., count:])
    for subject in (patient, patient.awake):
        gap = subject.differs(
            subject.ask(padded)[:, count:], subject.ask(alone), allowed=subject.close
        )
        if gap.any():
            unit = f"of the output of real tokens is off behind {count} places of padding"
            yield Sign("rows padded on the left", float(gap.max()), unit, "rounding only")
            return


CHECK = Check(
    code="left_pad_position",
    severity="error",
    title="Padding on the left shifts positions",
    explanation="A row that is padded on the left gets other positions than alone: the padding is "
    "counted. Short prompts in a batch are then continued worse than by themselves.",
    cure="Count real tokens: positions = (keep.cumsum(-1) - 1).clamp(min=0), and go on from there "
    "in decoding.",
    healthy="a row says the same padded and alone",
    source="unslothai/unsloth#3699",
    look=look,
    needs=("padding", "real"),
)
