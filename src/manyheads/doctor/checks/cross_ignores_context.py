"""Cross-attention that does not read its context."""

from collections.abc import Iterator

import torch

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Give another context and see whether anything changes."""
    facts, generator = patient.facts, torch.Generator().manual_seed(3000 + patient.seed)
    call = patient.base
    for slot in filter(lambda slot: slot is not None, (facts.context, facts.value)):
        call = call.put(slot, patient.kinds[slot].draw(call.get(slot), generator))
    if not patient.differs(patient.out, patient.ask(call)).any():
        where = f"argument {facts.context!r}"
        yield Sign(where, 0, "outputs change with another context", "all of them do")


CHECK = Check(
    code="cross_ignores_context",
    severity="error",
    title="The context is ignored",
    explanation="The output is the same whatever the context is. Keys and values are taken from "
    "the stream itself, so that what should be cross-attention is self-attention.",
    cure="Project keys and values from the context: k = k_proj(context), v = v_proj(context). A "
    "packed projection of one stream cannot serve cross-attention.",
    healthy="every output depends on the context",
    source="Vaswani et al. 2017, section 3.2.3 (arXiv:1706.03762)",
    look=look,
    needs=("context",),
    symptoms=(
        "unused_parameters",
        "gradient_dead",
        "softmax_axis",
        "padding_leak",
        "rope_on_values",
    ),
)
