"""Heads whose queries all look at one token."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.inside import weights_of_all
from manyheads.doctor.patient import Patient

MOST, SHARE = 0.95, 0.75


def look(patient: Patient) -> Iterator[Sign]:
    """Count heads all of whose queries give their weight to one and the same late key."""
    weights = weights_of_all(patient)
    # A first token that takes what nobody needs is a sink, and healthy.
    received = weights[..., 1:].mean(dim=-2).amax(dim=-1)
    fallen = (received > MOST).double().mean(dim=1) > SHARE
    share = float(fallen.double().mean())
    if share >= SHARE:
        unit = f"of {len(fallen)} heads have all queries at one key, which is not the first"
        yield Sign("most heads", share, unit, f"less than {SHARE}")


CHECK = Check(
    code="collapsed",
    severity="warning",
    title="Most heads look at one token, whoever asks",
    explanation="All queries give nearly all of their weight to the same key: what is asked does "
    "not matter any more, and every token is handed the same value.",
    cure="Lower the learning rate or warm it up longer, normalise queries and keys, and look for a "
    "bias that has grown large.",
    healthy="queries that look at different keys",
    source="Zhai et al. 2023, on entropy collapse (arXiv:2303.06296)",
    look=look,
    draw=evidence.of_heads,
    symptoms=("saturated", "gradient_dead", "too_many_heads"),
)
