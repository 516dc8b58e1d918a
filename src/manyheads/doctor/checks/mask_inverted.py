"""A mask that shows what it should hide."""

from collections.abc import Iterator

import torch

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide, holes
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """See whether the real read the hidden, and nothing real; or the future, and no past."""
    yield from _causal(patient)
    facts = patient.facts
    if facts.padding is None and facts.mask is None:
        if facts.causal is not True:
            raise CannotTell("no mask is known: declare Facts(padding=...) or Facts(mask=...)")
        return
    if not patient.has_tokens:
        raise CannotTell("the output is one for a whole row")
    hidden = holes(patient)
    seen = patient.influence_under(hide(patient, hidden)) > 0
    others = ~torch.eye(patient.length, dtype=torch.bool)
    if facts.causal is True:
        others = others.tril()
    real = ~hidden[0]
    from_hidden = _share(seen, others & real[:, None] & hidden[0])
    from_real = _share(seen, others & real[:, None] & real)
    if from_hidden > 0.9 and from_real < 0.1:
        unit = "of what real tokens may not read, they read, and little else"
        yield Sign(f"argument {facts.padding or facts.mask!r}", from_hidden, unit, "none")


def _causal(patient: Patient) -> Iterator[Sign]:
    if patient.facts.causal is not True or not patient.has_tokens or patient.length < 3:
        return
    seen = patient.influence > 0
    pairs = torch.ones_like(seen)
    future, past = _share(seen, pairs.triu(1)), _share(seen, pairs.tril(-1))
    # The last row sees nobody, and may take the mean of all.
    past_before = _share(seen[:-1], pairs.tril(-1)[:-1])
    if future > 0.9 and min(past, past_before) < 0.1:
        yield Sign("causal mask", future, "of the future is read, and no past", "the past alone")


def _share(seen: torch.Tensor, among: torch.Tensor) -> float:
    return float(seen[among].double().mean()) if among.any() else 0.0


CHECK = Check(
    code="mask_inverted",
    severity="error",
    title="The mask is the wrong way round",
    explanation="What the mask should hide is seen, and what it should show is hidden. Libraries "
    "mean opposite things by True: it shows in scaled_dot_product_attention, and hides in "
    "nn.MultiheadAttention.",
    cure="Invert the mask, or the condition that fills: scores.masked_fill(~may_see, -inf). If "
    "your mask marks padding with this value, declare it by Facts(real=...).",
    healthy="real tokens read real tokens, and nobody else",
    source="torch.nn.functional.scaled_dot_product_attention, attn_mask; "
    "torch.nn.MultiheadAttention, key_padding_mask; pytorch/pytorch#21518",
    look=look,
    draw=evidence.of_masks,
    symptoms=(
        "padding_leak",
        "future_leak",
        "mask_lost",
        "mask_wrong_axis",
        "empty_row_nan",
        "empty_row_mean",
        "float01_mask_added",
        "self_excluded",
        "softmax_axis",
        "cache_mismatch",
        "heads_merged_wrong",
        "half_overflow",
        "nan_origin",
        "document_leak",
        "too_many_heads",
    ),
)
