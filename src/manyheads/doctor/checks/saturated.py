"""Heads whose softmax has no slope left."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.inside import weights_of_all
from manyheads.doctor.patient import Patient

SHARP, SHARE = 0.999, 0.75


def look(patient: Patient) -> Iterator[Sign]:
    """Count heads that give nearly all weight to one key, for most queries that see several."""
    peaks = weights_of_all(patient).amax(dim=-1)[..., 2:]  # the first queries may see one key only
    sharp = (peaks > SHARP).double().mean(dim=(1, 2)) > SHARE
    share = float(sharp.double().mean())
    if share >= SHARE:
        unit = f"of {len(sharp)} heads give more than {SHARP} of their weight to one key"
        yield Sign("most heads", share, unit, f"less than {SHARE}; a few sharp heads are healthy")


CHECK = Check(
    code="saturated",
    severity="warning",
    title="Most heads are saturated",
    explanation="Scores are so large that the softmax is all or nothing: its slope is 0, and what "
    "the heads look at can no longer be learned.",
    cure="Look for a missing scale, weights that were drawn too large, or a learning rate that "
    "blew them up; normalise queries and keys, or cap the scores.",
    healthy="scores of a few units, weight on several keys",
    source="Zhai et al. 2023, on entropy collapse (arXiv:2303.06296)",
    look=look,
    draw=evidence.of_heads,
    symptoms=("gradient_dead", "too_many_heads"),
)
