"""Parameters that nothing reads."""

import copy
from collections.abc import Iterator

import torch

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.output import floats
from manyheads.doctor.patient import Patient
from manyheads.doctor.training import gradients


def look(patient: Patient) -> Iterator[Sign]:
    """Find parameters without a gradient, in any mode, whose values change nothing either."""
    # An expert that nobody asked for this time is not unused: other inputs may.
    other = patient.again()
    silent = without_gradient(patient) & without_gradient(other)
    idle = [
        name
        for name, _ in patient.model.named_parameters()
        if name in silent and not matters(patient, name) and not matters(other, name)
    ]
    if idle:
        idle = sorted(set(idle) & without_gradient(patient, training=True))
    if idle:
        total = sum(1 for _ in patient.model.parameters())
        unit = f"of {total} parameters are never read"
        names = ", ".join(idle[:4]) + (", ..." if len(idle) > 4 else "")
        yield Sign(names, len(idle), unit, "0")


def without_gradient(patient: Patient, *, training: bool = False) -> set[str]:
    """Parameters that get no gradient at all from a loss that reads every output."""
    found = gradients(patient, patient.base, training=training)
    return {name for name, grad in found.items() if grad is None}


def matters(patient: Patient, name: str, rows: slice = slice(None)) -> bool:
    """Whether another value of a parameter, or of some rows of it, gives another answer."""
    model = copy.deepcopy(patient.model)
    generator = torch.Generator().manual_seed(8000 + patient.seed)
    weight = model.get_parameter(name)
    with torch.no_grad():
        change = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
        part = weight[rows] if weight.ndim else weight
        part.add_(change[rows] if weight.ndim else change)
    before = floats(patient.answer(patient.base))
    after = floats(patient.answer(patient.base, model=model))
    return any(not torch.equal(a, b) for a, b in zip(before, after, strict=False))


CHECK = Check(
    code="unused_parameters",
    severity="warning",
    title="Parameters that are never used",
    explanation="These parameters were registered and take memory, but no output depends on them. "
    "They never learn, and distributed training stops at them.",
    cure="Delete them, or find where they should have been used.",
    healthy="every parameter has a gradient",
    source="pytorch/pytorch#26698",
    look=look,
)
