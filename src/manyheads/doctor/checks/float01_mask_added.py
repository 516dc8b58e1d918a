"""A mask of zeros and ones, or of small numbers, that is added to the scores."""

from collections.abc import Iterator

import torch

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide, holes
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """All real and all hidden are the same to a softmax that only adds them."""
    if not patient.has_tokens:
        raise CannotTell("the output is one for a whole row")
    hidden = holes(patient)
    some = hide(patient, hidden)
    read = patient.influence_under(some)[~hidden[0]][:, hidden[0]]
    if not (read > 0).any():
        return
    none = patient.ask(hide(patient, torch.zeros_like(hidden)))
    every = patient.ask(hide(patient, torch.ones_like(hidden)))
    shifted = patient.differs(none, every, allowed=patient.close).any()
    matters = patient.differs(none, patient.ask(some), allowed=patient.close).any()
    if matters and not shifted:
        unit = "of the output of real tokens comes from hidden ones, which weigh a little less"
        slot = patient.facts.padding if patient.facts.padding is not None else patient.facts.mask
        yield Sign(f"argument {slot!r}", float(read.max()), unit, "none")


CHECK = Check(
    code="float01_mask_added",
    severity="error",
    title="A 0/1 mask is added to the scores",
    explanation="The mask is added to the scores as it is, so that a hidden token loses a factor "
    "of e in its weight instead of all of it. Nothing raises; padding stays visible and training "
    "stalls.",
    cure="Fill instead of adding: scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min), "
    "and set weights to 0 where hidden after the softmax; or give bool masks, which kernels fill "
    "by themselves.",
    healthy="hidden tokens weigh nothing",
    source="pytorch/pytorch#21518",
    look=look,
    draw=evidence.of_padding,
    symptoms=("padding_leak", "mask_inverted", "softmax_axis", "weights_not_one"),
)
