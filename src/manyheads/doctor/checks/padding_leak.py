"""Padding that reaches real tokens."""

from collections.abc import Iterator

import torch
from torch import Tensor

from manyheads.doctor import evidence
from manyheads.doctor.call import Call
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.decoding import chunk
from manyheads.doctor.hiding import hide, marked, sides
from manyheads.doctor.locate import first_part
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Change what padding holds, on both sides, and how much there is; the context's likewise."""
    facts = patient.facts
    if facts.context_padding is not None:
        yield from _in_context(patient)
        if facts.padding is None and facts.mask is None:
            return
    signs = [_in_tokens(patient, hidden) for hidden in sides(patient)]
    found = [sign for sign in signs if sign is not None]
    # One side of a pooled model may hide the very token that it pools, its first or its last.
    if found and (patient.has_tokens or len(found) == len(signs)):
        yield found[0]
    elif not found:
        yield from _by_amount(patient)


def _in_tokens(patient: Patient, hidden: Tensor) -> Sign | None:
    """Change what stands at some hidden tokens."""
    before = hide(patient, hidden)
    after = patient.scrambled(hidden, before)
    gap = patient.differs(patient.ask(before), patient.ask(after))
    if patient.has_tokens:
        gap = gap.masked_fill(hidden, 0)
    if not gap.any():
        return None
    unit = "of the output of real tokens changes with what padding holds"
    return Sign(_place(patient, gap, hidden, before, after), float(gap.max()), unit, "none")


def _by_amount(patient: Patient) -> Iterator[Sign]:
    """Leave the padding at the end away altogether."""
    count = max(1, patient.length // 4)
    real = patient.length - count
    padded = hide(patient, patient.tokens(slice(real, None)))
    try:
        alone = patient.ask(chunk(patient, padded, 0, real))
    except Exception:  # of a model that wants rows of its own length
        return
    found = patient.ask(padded)
    found = found[:, :real] if patient.has_tokens else found
    if found.shape != alone.shape:
        return
    gap = patient.differs(found, alone, allowed=patient.close)
    if gap.any():
        unit = f"of the output of real tokens changes with {count} places of padding behind them"
        yield Sign(f"rows padded from {real} on", float(gap.max()), unit, "rounding only")


def _in_context(patient: Patient) -> Iterator[Sign]:
    slot, facts = patient.facts.context, patient.facts
    context, given = patient.base.get(slot), patient.base.get(facts.context_padding)
    if slot not in patient.kinds or facts.real is None or given.ndim != 2:
        raise CannotTell("nobody said what marks a real token of the context: Facts(real=...)")
    hidden = torch.zeros(given.shape, dtype=torch.bool)
    hidden[:, -max(1, given.shape[1] // 4) :] = True
    before = patient.base.put(facts.context_padding, marked(given, ~hidden, facts.real))
    after = patient.scrambled(hidden, before, slot=slot)
    gap = patient.differs(patient.ask(before), patient.ask(after))
    if gap.any():
        column = context.shape[0 if facts.layout == "length" else 1] - int(hidden[0].sum())
        where = f"argument {slot!r}, its padding from {column} on"
        unit = "of the output changes with what padding of the context holds"
        yield Sign(where, float(gap.max()), unit, "none")


def _place(patient: Patient, gap: Tensor, hidden: Tensor, before: Call, after: Call) -> str:
    if not patient.has_tokens:
        return f"pooled output of row {int(gap.nonzero()[0, 0])}"
    token = gap.nonzero()[0].tolist()[1]
    column = int(hidden[0].nonzero()[0, 0])
    part = first_part(patient, before, after, ~hidden)
    return f"{part}, output {token} reads padding at {column}"


CHECK = Check(
    code="padding_leak",
    severity="error",
    title="Padding is seen",
    explanation="What stands in the padding changes the outputs of real tokens: a row says "
    "something else when it is padded otherwise, or batched with longer rows.",
    cure="Mask keys by -inf before the softmax, in every layer and head; leave padding out of "
    "means, convolutions and norms over the length.",
    healthy="outputs of real tokens are bit-identical whatever padding holds",
    source="pytorch/pytorch#92554; unslothai/unsloth#3699",
    look=look,
    draw=evidence.of_padding,
    symptoms=("softmax_axis", "weights_not_one"),
)
