"""The part of a model that first makes NaN or infinity out of finite numbers."""

from typing import Any

import torch
from torch import nn

from manyheads.doctor.output import floats
from manyheads.doctor.running import unnoticed

INPUT = "Look at how this batch was made: a division, a logarithm, a damaged file."
UPDATE = (
    "Lower the learning rate, clip gradients (clip_grad_norm_), and skip a step whose gradient is "
    "not finite."
)


def first_broken(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str, str] | None:
    """Run a model again, and name the first thing in it that is not finite.

    Returns:
        Where, what is wrong there, and the cure where it is another than that of a part that turns
        finite numbers into others; None if all is finite.
    """
    if not all(bool(each.isfinite().all()) for each in floats([args, kwargs])):
        return "the input", "is the loss, and the input was not finite before", INPUT
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        more = f" (one of {len(broken)} parameters)" if len(broken) > 1 else ""
        unit = "is the loss, and an update had left numbers there that are not finite"
        return f"{broken[0]}{more}", unit, UPDATE
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
    return found[0], "is the loss; this part gave the first number that is not finite", ""
