"""Cross-attention that does not read its context."""

from collections.abc import Iterator

import torch

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient
from manyheads.doctor.weights import kv_len_of


def look(patient: Patient) -> Iterator[Sign]:
    """Give another context and see whether anything changes; then other keys or values alone."""
    slots = [each for each in (patient.facts.context, patient.facts.value) if each is not None]
    # One key has all the weight, whatever it is.
    alone = [[slot] for slot in slots] if len(slots) > 1 and kv_len_of(patient) > 1 else []
    for changed in (slots, *alone):
        generator = torch.Generator().manual_seed(3000 + patient.seed)
        call = patient.base
        for slot in changed:
            call = call.put(slot, patient.kinds[slot].draw(call.get(slot), generator))
        if not patient.differs(patient.out, patient.ask(call)).any():
            where = f"argument {changed[0]!r}"
            yield Sign(where, 0, "outputs change with another one", "all of them do")
            return


CHECK = Check(
    code="cross_ignores_context",
    severity="error",
    title="The context is ignored",
    explanation="The output is the same whatever the context, its keys or its values are: they are "
    "taken from the stream itself, or from each other. What should be cross-attention is not.",
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
        "key_value_swapped",
    ),
)
