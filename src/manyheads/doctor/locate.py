"""Where in a model a change first reaches a token that it must not reach."""

from typing import Any

import torch
from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.output import floats
from manyheads.doctor.patient import Patient


def first_part(patient: Patient, before: Call, after: Call, spared: Tensor) -> str:
    """The path of the part whose inputs kept spared tokens as they were, and whose output did not.

    Args:
        patient: The model.
        before: A call.
        after: The same with other tokens.
        spared: (batch, length), True at tokens that must not change.

    Returns:
        The module's path, its class in brackets; the model's class if no part of it is to blame.
    """
    runs = zip(patient.outputs_of_parts(before), patient.outputs_of_parts(after), strict=False)
    spared = patient.marks(spared)
    for (name, module, inputs, output), (other, _, other_inputs, other_output) in runs:
        if name != other:
            break  # the two calls did not take the same way
        if not name or not _changed(output, other_output, spared):
            continue
        if not _changed(inputs, other_inputs, spared):
            return f"{name} ({type(module).__name__})"
    return type(patient.model).__name__


def _changed(a: Any, b: Any, spared: Tensor) -> bool:
    """Whether streams among some values differ at spared tokens."""
    for one, two in zip(floats(a), floats(b), strict=False):
        if one.ndim < 3 or one.shape != two.shape or one.shape[:2] != spared.shape:
            continue
        same = (one == two) | (one.isnan() & two.isnan())
        gap = torch.where(same, 0.0, (one.double() - two.double()).abs().nan_to_num(torch.inf))
        size = float(one.detach().abs().nan_to_num().max()) if one.numel() else 0.0
        if bool((gap.flatten(2).amax(dim=-1) > 1e-12 * max(size, 1e-30))[spared].any()):
            return True
    return False
