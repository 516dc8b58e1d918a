"""Answers that are given chunk by chunk, through a cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.facts import CacheFacts
from manyheads.doctor.output import part
from manyheads.doctor.patient import Patient


class Decoding:
    """A model that is fed a call token by token; the cache is its state.

    Args:
        patient: The model.
        call: Where the tokens come from.
        model: Another model to feed; None means the patient's.
    """

    def __init__(self, patient: Patient, call: Call, model: nn.Module | None = None) -> None:
        self.patient, self.call, self.model = patient, call, model
        facts = patient.facts.cache
        assert facts is not None
        self.facts: CacheFacts = facts
        self.cache: Any = None if facts.start is None else facts.start()
        self.done = 0

    def feed(self, count: int) -> Tensor:
        """The answer for the next tokens, and the cache after them."""
        first, last = self.done, self.done + count
        call = chunk(self.patient, self.call, first, last).put(self.facts.argument, self.cache)
        output = self.patient.answer(call, model=self.model, live=self.cache)
        if self.facts.output is not None:
            self.cache = part(output, self.facts.output)
        self.done = last
        return self.patient.main(output)

    def reorder(self, index: Tensor) -> None:
        """Let each row go on with another's past."""
        assert self.facts.reorder is not None
        found = self.facts.reorder(self.cache, index)
        self.cache = self.cache if found is None else found


def chunk(patient: Patient, call: Call, first: int, last: int) -> Call:
    """A call with some tokens of x alone; a padding mask speaks of all tokens so far."""
    facts = patient.facts
    axis = 0 if facts.layout == "length" else 1
    call = call.put(facts.x, call.get(facts.x).narrow(axis, first, last - first))
    positions, padding = call.get(facts.positions), call.get(facts.padding)
    if isinstance(positions, Tensor):
        call = call.put(facts.positions, positions[..., first:last])
    if isinstance(padding, Tensor):
        call = call.put(facts.padding, padding[..., :last])
    mask = call.get(facts.mask)
    if isinstance(mask, Tensor):
        call = call.put(facts.mask, mask[..., first:last, :last])
    return call


def decoded(
    patient: Patient,
    chunks: Sequence[int],
    call: Call | None = None,
    model: nn.Module | None = None,
) -> Tensor:
    """The answer to a call in chunks of so many tokens."""
    decoding = Decoding(patient, patient.base if call is None else call, model)
    return torch.cat([decoding.feed(count) for count in chunks], dim=1)


def splits(length: int) -> list[list[int]]:
    """Ways to cut a text: a prompt and single tokens; chunks of several."""
    prompt = max(1, length // 3)
    rest = length - prompt
    several = [prompt, rest // 2, rest - rest // 2] if rest > 1 else [prompt, rest]
    return [[prompt, *[1] * rest], [each for each in several if each]]


def mismatch(
    patient: Patient, chunks: Sequence[int], model: nn.Module | None = None
) -> tuple[int, float] | None:
    """The first token whose answer through the cache is not that of one pass, and by how much."""
    whole = patient.ask(patient.base, model=model)
    gap = patient.differs(decoded(patient, chunks, model=model), whole, allowed=patient.close)
    wrong = gap.amax(dim=0).nonzero()
    return (int(wrong[0]), float(gap.max())) if len(wrong) else None
