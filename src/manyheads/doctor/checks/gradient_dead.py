"""Parameters that are read and never learn."""

from collections.abc import Iterator

from torch import Tensor

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.checks.unused_parameters import matters
from manyheads.doctor.patient import Patient
from manyheads.doctor.training import gradients

VANISHED = 1e-12


def look(patient: Patient) -> Iterator[Sign]:
    """Find weights whose gradient is none or nothing, though other values would matter."""
    found = gradients(patient, patient.base)
    sizes = {name: 0.0 if grad is None else float(grad.abs().max()) for name, grad in found.items()}
    limit = VANISHED * max(sizes.values(), default=0.0)
    # A key's bias never has one: the softmax does not see it. Matrices always should.
    flat = [
        name
        for name, size in sizes.items()
        if size <= limit and patient.model.get_parameter(name).ndim >= 2 and matters(patient, name)
    ]
    flat += [
        f"rows {first} to {last - 1} of {name}"
        for name, grad in found.items()
        if name not in flat and grad is not None and grad.ndim == 2
        for first, last in _dead_thirds(grad, limit)
        if matters(patient, name, slice(first, last))
    ]
    if flat:
        unit = f"of {len(sizes)} parameters get no gradient, though the output depends on them"
        names = ", ".join(flat[:4]) + (", ..." if len(flat) > 4 else "")
        yield Sign(names, len(flat), unit, "0")


def _dead_thirds(grad: Tensor, limit: float) -> Iterator[tuple[int, int]]:
    """Thirds of a matrix that is queries, keys and values in one, to which no gradient comes."""
    if grad.shape[0] % 3:
        return
    third = grad.shape[0] // 3
    dead = [float(part.abs().max()) <= limit for part in grad.split(third)]
    if not all(dead):
        yield from ((n * third, (n + 1) * third) for n in range(3) if dead[n])


CHECK = Check(
    code="gradient_dead",
    severity="error",
    title="No gradient reaches some weights",
    explanation="The output depends on these weights, but no gradient comes back to them, so they "
    "stay as they were drawn: a detach, a no_grad, an argmax or a rounding lies between, or a "
    "softmax so sharp that its slope is 0.",
    cure="Look between these weights and the output for detach(), .data, no_grad, argmax, and for "
    "scores that are far too large (a missing scale).",
    healthy="every weight that matters has a gradient",
    source="Vaswani et al. 2017, section 3.2.1, on small gradients (arXiv:1706.03762)",
    look=look,
)
