"""A mask that lands on queries, on other rows, or the wrong way across."""

from collections.abc import Iterator

import torch
from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide, holes, show
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Mask one row and look at another; hide a key and look at its query; transpose."""
    facts = patient.facts
    if facts.padding is None and facts.mask is None:
        raise CannotTell("no mask is known: declare Facts(padding=...) or Facts(mask=...)")
    for find in (_on_other_rows, _on_queries, _transposed):
        try:
            signs = list(find(patient))
        except CannotTell:
            continue
        if signs:
            yield from signs
            return


def _on_other_rows(patient: Patient) -> Iterator[Sign]:
    if patient.batch < 2:
        return
    nobody = torch.zeros(patient.batch, patient.length, dtype=torch.bool)
    for masked in (1, patient.batch - 1):
        some = nobody.clone()
        some[masked, :2] = True
        gap = patient.differs(patient.ask(hide(patient, some)), patient.ask(hide(patient, nobody)))
        gap[masked] = 0
        if gap.any():
            row = gap.nonzero()[0].tolist()[0]
            where = f"the mask of row {masked} hides keys of row {row}"
            unit = "of the output of a row changes with the mask of another"
            yield Sign(where, float(gap.max()), unit, "none: a row has a mask of its own")
            return


def _on_queries(patient: Patient) -> Iterator[Sign]:
    if not patient.has_tokens:
        return
    hidden = holes(patient)
    call = hide(patient, hidden)
    gap = patient.differs(patient.ask(call), patient.ask(hide(patient, torch.zeros_like(hidden))))
    read = patient.influence_under(call)[~hidden[0]][:, hidden[0]].gt(0).any()
    if read and not gap[~hidden].any() and _touches(patient, call, hidden):
        unit = "outputs of real tokens change when others are hidden, but the hidden ones' own do"
        yield Sign("the mask falls on queries instead of keys", 0, unit, "most of them")


def _touches(patient: Patient, call: Call, hidden: Tensor) -> bool:
    """Whether hiding moves a bit of the hidden tokens' outputs, and none of the others'.

    A finite number added to all scores of a query leaves its softmax as it is, but for rounding.
    """
    plain = patient.ask(hide(patient, torch.zeros_like(hidden)))
    moved = (patient.ask(call) != plain).flatten(2).any(dim=-1)
    return bool(moved[hidden].any()) and not bool(moved[~hidden].any())


def _transposed(patient: Patient) -> Iterator[Sign]:
    if not patient.has_tokens or patient.length < 3:
        return
    chain = torch.eye(patient.length, dtype=torch.bool)
    chain |= chain.roll(1, dims=0)  # each token sees itself and the one before it
    chain[0, -1] = False
    allowed = chain.expand(patient.batch, -1, -1)
    seen = patient.influence_under(show(patient, allowed)) > 0
    above, below = seen.triu(1), seen.tril(-1)
    if above.diagonal(1).all() and not below.any():
        unit = "tokens read the next one where the mask shows them the one before"
        yield Sign("the mask is transposed", int(above.diagonal(1).sum()), unit, "0")


CHECK = Check(
    code="mask_wrong_axis",
    severity="error",
    title="The mask lies on the wrong axis",
    explanation="The mask has the right shape by luck and means something else there: a (batch, "
    "length) mask falls on the batch's or the queries' axis, or one made for (batch * heads) rows "
    "is tiled, so that head h of one row gets another row's mask.",
    cure="Write the axes out: keep[:, None, None, :] for (batch, heads, q_len, kv_len); for (batch "
    "* heads, ...), keep.repeat_interleave(num_heads, dim=0), not repeat.",
    healthy="the mask of a row hides keys of that row, from all its queries",
    source="torch.nn.MultiheadAttention, attn_mask of 3 dimensions; ArrowLuo/CLIP4Clip#22",
    look=look,
    symptoms=(
        "padding_leak",
        "batch_mixing",
        "float01_mask_added",
        "empty_row_nan",
        "empty_row_mean",
        "future_leak",
        "mask_lost",
        "softmax_axis",
        "heads_merged_wrong",
        "half_overflow",
    ),
)
