"""A softmax that normalises over queries, heads or rows of the batch instead of keys."""

from collections.abc import Iterator

import torch
from torch import Tensor

from manyheads.doctor import evidence
from manyheads.doctor.attentions import attentions
from manyheads.doctor.call import Call
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient
from manyheads.doctor.weights import mixed_weights


def look(patient: Patient) -> Iterator[Sign]:
    """Read the axis of each softmax that is seen; where none is, add outputs over queries."""
    mixed, _ = mixed_weights(patient, patient.base)
    for each in mixed:
        sums = each.weights.double().sum(dim=-1)
        if each.axis != -1 and float((sums - 1).abs().max()) > 1e-3:
            worst = float(sums.flatten()[(sums.flatten() - 1).abs().argmax()])
            where = f"{each.where or type(patient.model).__name__}, softmax over dim {each.axis}"
            yield Sign(where, worst, "is what the weights of a query sum to over its keys", "1")
            return
    for name, part in attentions(patient):
        if not part.has_tokens or not part.x.is_floating_point() or part.x.ndim != 3:
            continue
        yield from _over_queries(name, part)


def _over_queries(name: str, part: Patient) -> Iterator[Sign]:
    """If each key's weights sum to 1 over the queries, the sum of outputs is linear in the keys."""
    slot = part.facts.x if part.facts.context is None else part.facts.context
    first = part.base.get(slot)
    second = part.kinds[slot].draw(first, torch.Generator().manual_seed(6000 + part.seed))

    def sums(x: Tensor) -> tuple[Tensor, Tensor]:
        out = part.ask(_with(part, slot, x))
        return out.sum(dim=1), out

    (a, own), (b, _), (both, _), (none, zero) = map(
        sums, (first, second, first + second, torch.zeros_like(first))
    )
    (_, other), (_, mixed) = sums(second), sums(first + second)
    size = float(a.abs().max()) or 1.0
    bent = float((own + other - mixed - zero).abs().max()) / size
    off = float((a + b - both - none).abs().max()) / size
    if bent > 1e-4 and off < 1e-7:
        unit = "of the sum of outputs over queries is not linear in the keys' stream"
        yield Sign(name, off, unit, f"much, for weights depend on it (one output: {bent:.2g})")


def _with(part: Patient, slot: object, x: Tensor) -> Call:
    call = part.base.put(slot, x)  # type: ignore[arg-type]
    return call if part.facts.value is None else call.put(part.facts.value, x)


CHECK = Check(
    code="softmax_axis",
    severity="error",
    title="The softmax runs over the wrong axis",
    explanation="Weights sum to 1 over the queries, or the heads, instead of over the keys: each "
    "key hands out one portion, queries compete for it, and under a causal mask the past hears of "
    "the future.",
    cure="scores.softmax(dim=-1), where scores are (..., q_len, kv_len).",
    healthy="weights of each query sum to 1 over its keys",
    source="Vaswani et al. 2017, eq. 1 (arXiv:1706.03762)",
    look=look,
    draw=evidence.of_heads,
    symptoms=(
        "future_leak",
        "padding_leak",
        "empty_row_nan",
        "empty_row_mean",
        "heads_merged_wrong",
        "mask_inverted",
        "document_leak",
        "window_off_by_one",
        "cache_mismatch",
        "weights_after_dropout",
        "weights_not_one",
        "batch_mixing",
        "rope_on_values",
    ),
)
