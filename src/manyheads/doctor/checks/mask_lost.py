"""A mask that has no effect, or that undoes another."""

from collections.abc import Iterator

import torch

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide, holes
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Hide a token from the others; then ask a causal model with a mask and without."""
    facts = patient.facts
    nobody = torch.zeros(patient.batch, patient.length, dtype=torch.bool)
    plain = hide(patient, nobody)
    slot = facts.padding if facts.padding is not None else facts.mask
    gap = patient.differs(patient.ask(hide(patient, holes(patient))), patient.ask(plain))
    if not gap.any():
        yield Sign(f"argument {slot!r}", 0, "outputs change when a token is hidden", "most do")
        return
    if facts.causal is not True or not patient.has_tokens:
        return
    try:
        without = (patient.influence_under(patient.base.put(slot, None)) > 0).triu(1)
    except Exception as error:
        raise CannotTell("the model wants its mask, so it cannot be asked without") from error
    beside = (patient.influence_under(plain) > 0).triu(1)
    if beside.any() and not without.any():
        count = int(beside.sum())
        unit = "future tokens are read as soon as a mask is given"
        yield Sign(f"argument {slot!r}", count, unit, "0, as without the mask")


CHECK = Check(
    code="mask_lost",
    severity="error",
    title="A mask is lost",
    explanation="A mask that was given changes nothing, or a second mask makes the first one "
    "disappear. is_causal=True beside an attn_mask is dropped or refused by many kernels, and a "
    "wrapper that passes the one forgets the other.",
    cure="Combine all masks into one before the call: attn_mask = causal & keep[:, None, None, :], "
    "is_causal=False.",
    healthy="hiding a token changes those that read it, and the future stays unseen",
    source="pytorch/pytorch#96941; pytorch/pytorch#92554",
    look=look,
    draw=evidence.of_masks,
    symptoms=(
        "padding_leak",
        "future_leak",
        "document_leak",
        "softmax_axis",
        "cache_mismatch",
        "weights_not_one",
    ),
)
