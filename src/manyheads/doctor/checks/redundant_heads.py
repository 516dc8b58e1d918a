"""Heads that do the same."""

from collections.abc import Iterator

import torch

from manyheads.doctor import evidence
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Find heads of one layer with the same weights, though not the only ones possible."""
    for each in observed(patient):
        weights = each.seen.weights().detach().double()
        # A head that sees one key has no choice, and is no copy of another such head.
        spread = (weights > 1e-6).sum(dim=-1).amax(dim=(0, 2))
        twins = [
            (a, b)
            for b in range(weights.shape[1])
            for a in range(b)
            if spread[b] > 1 and torch.allclose(weights[:, a], weights[:, b], rtol=0, atol=1e-9)
        ]
        copies = {b for _, b in twins}
        if copies:
            a, b = twins[0]
            unit = f"of {weights.shape[1]} heads weigh every key as another does"
            yield Sign(f"{each.where}, heads {a} and {b}", len(copies), unit, "0")


CHECK = Check(
    code="redundant_heads",
    severity="warning",
    title="Heads that are copies of one another",
    explanation="Two heads of a layer give every key the same weight, whatever is asked. Equal "
    "weights get equal gradients, so that they never part.",
    cure="Draw each head on its own; look for weights that were repeated or expanded, and for "
    "scores that are constant.",
    healthy="heads that differ",
    source="Voita et al. 2019 (arXiv:1905.09418)",
    look=look,
    draw=evidence.of_heads,
    symptoms=("too_many_heads",),
)
