"""A model that cannot tell the order of its tokens."""

from collections.abc import Iterator

import torch

from manyheads.doctor.attentions import ATTENTION
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Shuffle the tokens, and see whether the outputs are merely shuffled."""
    if patient.facts.ordered is not True:
        raise CannotTell("order is not meant to matter")
    if patient.x.ndim > 3 or patient.length < 4:
        raise CannotTell("the example has no tokens to shuffle")
    if patient.has_tokens:
        mixes = bool((patient.influence.triu(1) + patient.influence.tril(-1)).any())
    else:
        mixes = any(ATTENTION.search(type(each).__name__) for each in patient.model.modules())
    if not mixes:
        raise CannotTell("its tokens do not attend to one another")
    off = max(_change(each) for each in (patient, patient.awake))
    if not off:
        unit = "of the output depends on the order of the tokens"
        yield Sign(type(patient.model).__name__, off, unit, "most of it")


def _change(patient: Patient) -> float:
    causal = patient.facts.causal is True and patient.has_tokens
    movable = patient.length - 1 if causal else patient.length
    order = torch.arange(patient.length)
    order[:movable] = torch.randperm(movable, generator=patient.generator)
    if torch.equal(order, torch.arange(patient.length)):
        order[:movable] = order[:movable].flip(0)
    axis = 0 if patient.facts.layout == "length" else 1
    x = patient.x.index_select(axis, order)
    out, found = patient.out, patient.ask(patient.base.put(patient.facts.x, x))
    if causal:
        # The mask itself tells how many stand before; only the last token sees the same crowd.
        gap = patient.differs(found, out, allowed=patient.close)[:, -1]
    else:
        shuffled = out[:, order] if patient.has_tokens else out
        gap = patient.differs(found, shuffled, allowed=patient.close)
    return float(gap.max())


CHECK = Check(
    code="no_position",
    severity="error",
    title="The model does not know where tokens stand",
    explanation="Shuffling the tokens only shuffles the outputs: attention by itself knows no "
    "order, and nothing tells it. Position embeddings are missing, constant along the length, or "
    "lie on the batch's axis.",
    cure="Add position embeddings to the stream, or rotary to queries and keys; look whether the "
    "table is indexed by the axis of length.",
    healthy="another order gives another output",
    source="Vaswani et al. 2017, section 3.5 (arXiv:1706.03762); codertimo/BERT-pytorch#78",
    look=look,
    symptoms=("batch_mixing", "left_pad_position"),
)
