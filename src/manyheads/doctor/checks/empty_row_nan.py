"""NaN where a query may see nobody."""

from collections.abc import Iterator

import torch

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.hiding import hide
from manyheads.doctor.patient import Patient
from manyheads.doctor.training import gradients


def look(patient: Patient) -> Iterator[Sign]:
    """Hide all keys of one row, or of all; look at outputs, then at gradients of the others."""
    hidden = torch.zeros(patient.batch, patient.length, dtype=torch.bool)
    hidden[0] = True
    try:
        call = hide(patient, hidden)
    except Exception:
        hidden[:] = True
        call = hide(patient, hidden)
    out = patient.ask(call)
    if out.isnan().any():
        share = float(out.isnan().double().mean())
        yield Sign("a row without a key", share, "of the output is NaN", "finite numbers")
        return
    others = slice(1, None) if patient.batch > 1 else slice(None)
    broken = [
        name
        for name, grad in gradients(patient, call, others).items()
        if grad is not None and grad.isnan().any()
    ]
    if broken:
        unit = "parameters have a NaN gradient, though the output has none"
        yield Sign(f"a row without a key, {broken[0]}", len(broken), unit, "0")


CHECK = Check(
    code="empty_row_nan",
    severity="warning",
    title="A query that sees nobody gives NaN",
    explanation="A row whose keys are all hidden is softmax over -inf alone, 0/0. The NaN reaches "
    "every gradient, even where the row itself is thrown away later.",
    cure="Fill by the lowest finite number, and set weights to 0 where hidden after the softmax; "
    "nan_to_num behind it mends outputs, not gradients.",
    healthy="finite outputs and gradients, best of all 0",
    source="pytorch/pytorch#41508",
    look=look,
    symptoms=("empty_row_mean",),
)
