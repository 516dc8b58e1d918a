"""Gradients that have no derivative of their own, and say so."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import BackendError

Backward = Callable[..., tuple[Any, ...]]


def once_differentiable(backward: Backward) -> Backward:
    """A backward whose result raises where somebody differentiates it again.

    torch's own decorator lets a second derivative be 0 without a word where the gradient that came
    in is a constant, as that of a sum is.
    """

    def once(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
        with torch.no_grad():
            found = backward(ctx, *given)
        if not torch.is_grad_enabled():
            return found
        return tuple(
            _End.apply(x.detach().requires_grad_()) if x is not None else None for x in found
        )

    return once


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *again: Any) -> Any:
        raise BackendError(
            "a second derivative must be one of backend='reference'; got one of a faster backend. "
            "Name the reference in the call of attention."
        )
