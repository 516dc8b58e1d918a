"""What the steps between a product and its softmax do to scores."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyheads.probe.axes import Axis
from manyheads.probe.scores import Operand, Scores


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _other(tensor: Tensor, args: Any) -> Any:
    return args[1] if args[0] is tensor else args[0]


def _mul(s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, _: Any) -> Scores | None:
    other = _other(tensor, args)
    factor = _number(other)
    if factor is None:
        return s.times_each(Operand(other.detach(), axes))
    return s.times(factor)


def _div(s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, _: Any) -> Scores | None:
    if args[0] is not tensor:
        return None
    divisor = _number(args[1])
    if divisor is None:
        return s.times_each(Operand(args[1].detach().reciprocal(), axes))
    return s.times(1 / divisor) if divisor else None


def _add(
    s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, kwargs: Any
) -> Scores | None:
    other, alpha = _other(tensor, args), float(kwargs.get("alpha", 1))
    if not isinstance(other, Tensor) or (alpha != 1 and args[0] is not tensor):
        return s if not isinstance(other, Tensor) else None  # a constant moves no weight
    return s.plus(Operand(other.detach(), axes, alpha))


def _sub(
    s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, kwargs: Any
) -> Scores | None:
    if args[0] is not tensor:
        return None
    if not isinstance(args[1], Tensor):
        return s
    return s.plus(Operand(args[1].detach(), axes, -float(kwargs.get("alpha", 1))))


def _masked_fill(
    s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, _: Any
) -> Scores | None:
    value = _number(args[2])
    return None if value is None else s.filled(Operand(args[1].detach(), axes), value)


def _where(s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, _: Any) -> Scores | None:
    seen, kept, other = args
    value = _number(other if kept is tensor else kept)
    if value is None:
        return None
    hidden = ~seen if kept is tensor else seen
    return s.filled(Operand(hidden.detach(), axes), value)


def _index_put(
    s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, _: Any
) -> Scores | None:
    (where, *others), value = args[1], _number(args[2])
    if others or where is None or where.dtype != torch.bool or where.shape != tensor.shape:
        return None
    return None if value is None else s.filled(Operand(where.detach(), axes), value)


def _log_softmax(
    s: Scores, tensor: Tensor, axes: tuple[Axis, ...], args: Any, _: Any
) -> Scores | None:
    # What a row is lowered by moves no weight.
    return s if axes[args[1]].role == "column" or s.right.shape[1] == 1 else None


STEPS: dict[str, Callable[[Scores, Tensor, tuple[Axis, ...], Any, Any], Scores | None]] = {
    "mul": _mul,
    "div": _div,
    "add": _add,
    "sub": _sub,
    "masked_fill": _masked_fill,
    "where": _where,
    "index_put": _index_put,
    "_log_softmax": _log_softmax,
    "tanh": lambda s, *_: s.tanh(),
}
"""By the name of torch's operation: what scores become; None for what no call of attention has."""
