"""Heads that say nothing."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient

NOTHING = 1e-6


def look(patient: Patient) -> Iterator[Sign]:
    """Measure what each head gives, beside the loudest of its layer."""
    judged = False
    for each in observed(patient):
        out = each.seen.output
        if out is None or out.ndim != 4 or out.shape[1] < 2:
            continue
        judged = True
        loud = out.detach().double().square().mean(dim=(0, 2, 3)).sqrt()
        quiet = (loud <= NOTHING * loud.max()).nonzero().flatten().tolist()
        if quiet:
            heads = ", ".join(map(str, quiet[:8]))
            unit = f"of {len(loud)} heads give less than {NOTHING} of the loudest"
            yield Sign(f"{each.where}, head {heads}", len(quiet), unit, "0")
    if not judged:
        raise CannotTell("the heads' outputs were not seen one by one")


CHECK = Check(
    code="dead_heads",
    severity="warning",
    title="Heads that give nothing",
    explanation="The outputs of these heads are 0 beside those of their neighbours: their values "
    "are 0, so that they cost time and memory for nothing.",
    cure="Look for values that were never initialised, or drawn as 0; prune the heads if it is "
    "meant so.",
    healthy="heads of like loudness",
    source="Michel et al. 2019 (arXiv:1905.10650)",
    look=look,
    draw=evidence.of_heads,
)
