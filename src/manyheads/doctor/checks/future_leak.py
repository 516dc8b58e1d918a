"""A causal model that reads the future."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.locate import first_part
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Change everything after each cut, and single tokens; what stands before must not move."""
    facts = patient.facts
    if facts.causal not in (True, "prefix"):
        raise CannotTell("the model is not causal")
    if not patient.has_tokens:
        raise CannotTell("the output is one for a whole row")
    if facts.causal == "prefix" and facts.prefix is None:
        raise CannotTell("nobody said how long the prefix is: declare Facts(prefix=...)")
    begin = 1 if facts.causal is True else max(1, facts.prefix or 1)
    for cut in range(begin, patient.length):
        later = patient.tokens(slice(cut, None))
        call = patient.scrambled(later)
        gap = patient.differs(patient.out, patient.ask(call)).masked_fill(later, 0)
        if gap.any():
            output = int(gap.amax(dim=0).nonzero()[0, 0])
            source = _source(patient, output, cut)
            part = first_part(patient, patient.base, call, ~later)
            unit = "of an output changes with what comes after it"
            yield Sign(
                f"{part}, output {output} reads input {source}", float(gap.max()), unit, "none"
            )
            return


def _source(patient: Patient, output: int, cut: int) -> int:
    """The first future token that changes an output all by itself; the cut if none does."""
    ahead = patient.influence[output, cut:].nonzero()
    return cut + int(ahead[0, 0]) if len(ahead) else cut


CHECK = Check(
    code="future_leak",
    severity="error",
    title="The future is read",
    explanation="An output depends on tokens that come after it. In training the model copies the "
    "answer that it should predict, the loss looks splendid, and what it writes is garbage.",
    cure="Look at the named part for a mask that is missing, shifted by one, or lost beside "
    "another; and for means, norms, shifts or convolutions that reach ahead.",
    healthy="outputs before a cut are bit-identical whatever comes after it",
    source="Vaswani et al. 2017, section 3.2.3 (arXiv:1706.03762)",
    look=look,
    draw=evidence.of_future,
    symptoms=(
        "cache_mismatch",
        "position_offset_cache",
        "beam_aliasing",
        "document_leak",
        "weights_not_one",
    ),
)
