"""Pictures of what a check found: who reads whom from outside, and the heads inside that do it."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.hiding import hide, sides, two_documents
from manyheads.doctor.inside import Observed, observed
from manyheads.doctor.patient import Patient
from manyheads.doctor.picture import Picture

MOST_TOKENS, MOST_HEADS = 48, 4
"""A picture shows the first of them, a finding the heads that show it best."""
DECADES = 12
"""Changes so much smaller than the output are still to be seen."""


def of_heads(patient: Patient, where: str) -> Iterator[Picture]:
    """Weights of some heads of the call at a place, such as "layers.1.attention, heads 0 and 1"."""
    call = _at(patient, where)
    weights = call.seen.weights().detach()[0].double().cpu()
    yield from _heads(call.where, weights, list(range(len(weights))))


def of_future(patient: Patient, where: str) -> Iterator[Picture]:
    """Who reads whom under a causal mask, and the heads that look ahead."""
    ahead = _pairs(patient).triu(1)
    yield _reads(patient, patient.base, ahead)
    yield from _heads_that_look(patient, where, ahead)


def of_itself(patient: Patient, where: str) -> Iterator[Picture]:
    """Who reads whom under a causal mask; the diagonal should be there."""
    yield _reads(patient, patient.base, _pairs(patient).triu(1))
    yield from of_heads(patient, where)


def of_padding(patient: Patient, where: str) -> Iterator[Picture]:
    """Who reads whom where some tokens are said to be padding, and the heads that look at it."""
    hidden = sides(patient)[0]
    padded = replace(patient, call=hide(patient, hidden, patient.call))
    at_padding = hidden[0] & ~hidden[0][:, None]
    yield _reads(padded, padded.base, at_padding)
    yield from _heads_that_look(padded, where, at_padding)


def of_masks(patient: Patient, where: str) -> Iterator[Picture]:
    """Who reads whom under each mask that the model is known to have."""
    if patient.facts.causal is True:
        yield from of_future(patient, where)
    if patient.facts.padding is not None or patient.facts.mask is not None:
        yield from of_padding(patient, where)


def of_window(patient: Patient, where: str) -> Iterator[Picture]:
    """Who reads whom; beyond the window nobody should."""
    window = patient.facts.window or patient.length
    yield _reads(patient, patient.base, _pairs(patient).tril(-window))
    yield from of_heads(patient, where)


def of_documents(patient: Patient, where: str) -> Iterator[Picture]:
    """Who reads whom where two documents stand in each row."""
    call, second = two_documents(patient)
    yield _reads(patient, call, second[0] != second[0][:, None])


def _heads_that_look(patient: Patient, where: str, unlawful: Tensor) -> Iterator[Picture]:
    """Heads with weight where none should be, those with most of it first."""
    call = _at(patient, where)
    weights = call.seen.weights().detach()[0].double().cpu()
    if weights.shape[1:] == unlawful.shape:
        mass = weights.masked_fill(~unlawful, 0).sum(dim=(1, 2))
        heads = [head for head in mass.argsort(descending=True).tolist() if mass[head] > 0]
        yield from _heads(call.where, weights, heads, unlawful)


def _reads(patient: Patient, call: Call, unlawful: Tensor) -> Picture:
    gap = patient.influence_under(call) if call is not patient.base else patient.influence
    strength = 1 + gap.clamp(max=1).log10() / DECADES
    return Picture(
        title="what each output reads",
        rows="output",
        columns="input",
        cells=_numbers(strength.clamp(min=0.08).masked_fill(gap == 0, 0)),
        marks=_places(unlawful & (gap > 0)),
        scale=f"white: nothing changes; from 1e-{DECADES} of the output to all of it",
    )


def _heads(
    name: str, weights: Tensor, heads: list[int], unlawful: Tensor | None = None
) -> Iterator[Picture]:
    for head in heads[:MOST_HEADS]:
        seen = weights[head] > 0
        yield Picture(
            title=f"{name}, head {head}",
            rows="query",
            columns="key",
            cells=_numbers(weights[head].clamp(0, 1)),
            marks=() if unlawful is None else _places(unlawful & seen),
        )


def _at(patient: Patient, where: str) -> Observed:
    """The call whose place begins like that of the finding; the first if none does."""
    calls = observed(patient)
    own = [each for each in calls if where.startswith(each.where)]
    return max(own, key=lambda each: len(each.where)) if own else calls[0]


def _pairs(patient: Patient) -> Tensor:
    return torch.ones(patient.length, patient.length, dtype=torch.bool)


def _numbers(cells: Tensor) -> tuple[tuple[float, ...], ...]:
    shown = cells[:MOST_TOKENS, :MOST_TOKENS].nan_to_num().tolist()
    return tuple(tuple(round(cell, 4) for cell in row) for row in shown)


def _places(marked: Tensor) -> tuple[tuple[int, int], ...]:
    places = marked[:MOST_TOKENS, :MOST_TOKENS].nonzero().tolist()
    return tuple((row, column) for row, column in places)
