"""A model that cannot tell the order of its tokens."""

from collections.abc import Iterator

import torch
from torch import nn

from manyheads.doctor.attentions import ATTENTION
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Shuffle the tokens, and see whether the outputs are merely shuffled."""
    if patient.facts.ordered is not True:
        raise CannotTell("order is not meant to matter")
    patch = _patch(patient)
    if patch is None and (patient.x.ndim > 3 or patient.length < 4):
        raise CannotTell("the example has no tokens to shuffle")
    if patch is not None:
        mixes = not patient.has_tokens and _attends(patient)
    elif patient.has_tokens:
        mixes = bool((patient.influence.triu(1) + patient.influence.tril(-1)).any())
    else:
        mixes = any(ATTENTION.search(type(each).__name__) for each in patient.model.modules())
    if not mixes:
        raise CannotTell("its tokens do not attend to one another")
    change = _change if patch is None else _change_of_patches
    off = max(change(each) for each in (patient, patient.awake))
    if not off:
        unit = "of the output depends on the order of the tokens"
        yield Sign(type(patient.model).__name__, off, unit, "most of it")


def _attends(patient: Patient) -> bool:
    try:
        return bool(observed(patient))
    except CannotTell:
        return False


def _patch(patient: Patient) -> int | None:
    """The side of the squares that an image is cut into, in pixels; None if it is not."""
    if patient.x.ndim != 4:
        return None
    for each in patient.model.modules():
        if isinstance(each, nn.Conv2d) and each.in_channels == patient.x.shape[1]:
            side = each.kernel_size[0]
            whole = all(size % side == 0 and size >= 2 * side for size in patient.x.shape[2:])
            return side if side > 1 and each.kernel_size == each.stride and whole else None
    return None


def _change_of_patches(patient: Patient) -> float:
    side = _patch(patient)
    assert side is not None
    x = patient.x.unfold(2, side, side).unfold(3, side, side)
    rows, columns = x.shape[2:4]
    order = torch.randperm(rows * columns, generator=patient.generator)
    shuffled = x.flatten(2, 3)[:, :, order].unflatten(2, (rows, columns))
    image = shuffled.transpose(3, 4).reshape(patient.x.shape)
    found = patient.ask(patient.base.put(patient.facts.x, image))
    return float(patient.differs(found, patient.out, allowed=patient.close).max())


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
    symptoms=("batch_mixing", "left_pad_position", "unused_parameters"),
)
