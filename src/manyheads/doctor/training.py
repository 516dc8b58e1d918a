"""What a step of training would see: outputs in training mode, and gradients."""

import copy
from typing import Any

import torch
from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.output import floats
from manyheads.doctor.patient import Patient
from manyheads.doctor.running import run


def gradients(
    patient: Patient, call: Call, rows: slice = slice(None), *, training: bool = False
) -> dict[str, Tensor | None]:
    """The gradient of each parameter that wants one, of a loss that reads every output.

    Args:
        patient: The model.
        call: What it is asked.
        rows: The rows of the main output that the loss reads; all outputs are read if it is all.
        training: Whether it is asked in training mode.
    """
    model = copy.deepcopy(patient.model).train(training)
    model.zero_grad(set_to_none=True)
    output = run(model, call, grad=True)
    read = list(floats(output)) if rows == slice(None) else [patient.main(output)[rows]]
    generator = torch.Generator().manual_seed(5000 + patient.seed)
    loss = sum(
        (each * torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each)).sum()
        for each in read
        if each.requires_grad
    )
    if isinstance(loss, Tensor):
        loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}


def in_training(patient: Patient, call: Call, *, model: Any = None, seed: int = 0) -> Any:
    """Everything that the model answers in training mode."""
    model = copy.deepcopy(patient.model if model is None else model).train()
    return run(model, call, seed=seed, grad=True)
