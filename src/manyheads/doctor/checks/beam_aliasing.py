"""Beams that share a past which is not theirs."""

from collections.abc import Iterator

import torch

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.decoding import Decoding
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Reorder the cache in the middle of a text, and go on."""
    cache = patient.facts.cache
    assert cache is not None
    if cache.reorder is None:
        raise CannotTell("nobody said how the cache is reordered: CacheFacts(reorder=...)")
    if patient.batch < 2:
        raise CannotTell("the example has one row")
    prompt = patient.length // 2
    axis = 1 if patient.facts.layout == "length" else 0
    for index in (torch.arange(patient.batch).roll(1), torch.zeros(patient.batch).long()):
        decoding = Decoding(patient, patient.base)
        decoding.feed(prompt)
        decoding.reorder(index)
        decoding.call = patient.base.put(patient.facts.x, patient.x.index_select(axis, index))
        found = decoding.feed(patient.length - prompt)
        right = patient.ask(decoding.call)[:, prompt:]
        gap = patient.differs(found, right, allowed=patient.close)
        if gap.any():
            row = int(gap.amax(dim=1).nonzero()[0, 0])
            unit = f"of the output is off after the rows were reordered to {index.tolist()}"
            yield Sign(f"row {row}", float(gap.max()), unit, "rounding only")
            return


CHECK = Check(
    code="beam_aliasing",
    severity="error",
    title="Reordered rows keep another row's past",
    explanation="After the cache was reordered, as beam search does at each step, a row goes on "
    "from a past that is not its own: the reorder was skipped for a layer or for values, took the "
    "wrong axis, or overwrote rows that it still had to read.",
    cure="Take all rows at once, keys and values of every layer: k = k.index_select(0, index).",
    healthy="a reordered cache continues as the reordered text does",
    source="huggingface/transformers#46612",
    look=look,
    needs=("cache",),
)
