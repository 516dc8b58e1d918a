"""How weights begin."""

from typing import Literal, get_args

import torch
from torch import nn

from manyheads.errors import OptionError

Init = Literal["xavier", "normal", "torch"]


def initialise(linear: nn.Linear, init: Init) -> None:
    """Fill a projection with its first weights; biases begin at 0 except with "torch".

    Args:
        linear: The projection.
        init: "xavier", uniform with the variance 2 / (inputs + outputs); "normal", of standard
            deviation 0.02 as in GPT-2; "torch", what ``nn.Linear`` does by itself.

    Source:
        Glorot and Bengio 2010; Radford et al. 2019.
    """
    if init not in get_args(Init):
        raise OptionError(
            f"init must be 'xavier', 'normal' or 'torch'; got init={init!r}. Choose one, or write "
            f"into the weights afterwards."
        )
    if linear.weight.is_meta:
        return  # nothing to fill, and torch takes its time to do that
    if init == "torch":
        linear.reset_parameters()
        return
    if init == "normal":
        nn.init.normal_(linear.weight, std=0.02)
    else:
        # Each projection of a packed matrix by itself, so that packing changes nothing.
        widths = getattr(linear, "widths", (linear.out_features,))
        with torch.no_grad():
            for block in linear.weight.split(widths):
                nn.init.xavier_uniform_(block)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def reset_children(module: nn.Module) -> None:
    """Begin the weights of a module's parts anew."""
    for part in module.children():
        part.reset_parameters()  # type: ignore[operator]
