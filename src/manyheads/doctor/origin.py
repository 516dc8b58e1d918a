"""The part of a model that first makes NaN or infinity out of finite numbers."""

from typing import Any

import torch
from torch import nn

from manyheads.doctor.output import floats
from manyheads.doctor.running import unnoticed


def first_broken(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str] | None:
    """Run a model again, and name the first thing in it that is not finite.

    Returns:
        Where, and what is wrong there; None if all is finite.
    """
    if not all(bool(each.isfinite().all()) for each in floats([args, kwargs])):
        return "the input", "is the loss, and the input was not finite before"
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            return name, "is the loss, and this parameter was not finite before"
    found: list[str] = []

    def look(module: nn.Module, given: Any, output: Any) -> None:
        if not found and not all(bool(each.isfinite().all()) for each in floats(output)):
            found.append(names[module])

    names = {module: name or "(the model)" for name, module in model.named_modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    hooks = [module.register_forward_hook(look) for module in names]
    try:
        with unnoticed(), torch.no_grad():
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    if not found:
        return None
    return found[0], "is the loss; this part gave the first number that is not finite"
