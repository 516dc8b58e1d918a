"""Copies of a model to try things on, so that the model itself is never touched."""

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from manyheads.doctor.call import Call
from manyheads.doctor.running import run
from manyheads.errors import ExamineError


def private_copy(model: nn.Module) -> nn.Module:
    """The same model, weights and mode, that shares nothing with the original.

    Raises:
        ExamineError: If it cannot be copied.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            # What a module keeps of its last call may hang on a graph, which no copy can.
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ExamineError(
            f"model must be one that copy.deepcopy can copy, for it is examined on copies; got "
            f"model={type(model).__name__} ({error}). Take what is not copyable out of it."
        ) from error


class Apart(TorchFunctionMode):
    """Refuses a copy that computes with a weight of the original while it runs in here.

    A lambda that a module keeps of itself is not copied: it goes on calling the original, which
    would be given the gradients of what is tried on the copy.

    Args:
        original: The model that was copied.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self._names = {id(each): name for name, each in original.named_parameters()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for each in (*args, *kwargs.values()):
            if id(each) in self._names:
                raise ExamineError(
                    f"model must be whole in a copy of it, on which it is examined; got one whose "
                    f"copy computes with {self._names[id(each)]} of the original. Make a method of "
                    f"the function that it keeps of itself."
                )
        return func(*args, **kwargs)


def without_dropout(model: nn.Module) -> nn.Module:
    """A copy that drops nothing, in whatever mode it is."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            number = isinstance(value, float) and not isinstance(value, bool)
            if number and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return model


def awake(model: nn.Module) -> nn.Module:
    """A copy whose weights are large enough for attention to be sharp.

    Attention of small random weights is nearly uniform, which hides what it does. Scaling weights
    changes no part of the structure that is examined.
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2 and weight.is_floating_point() and weight.numel():
                width = weight[0].numel() if weight.ndim > 2 else min(weight.shape)
                size = float(weight.double().square().mean().sqrt()) * max(1, width) ** 0.5
                if 0 < size < 1.5:
                    weight.mul_(1.5 / size)
    return model


POSITIONAL = re.compile(
    r"(^|[._])(pos|pe|wpe|position\w*|pos_\w+|rope\w*|rotary\w*|rot|alibi\w*|sinusoid\w*|"
    r"inv_freq|cos\w*|sin\w*|freqs\w*|angles|\w+_pos|positional\w*)([._]|$)",
    re.IGNORECASE,
)
"""Names under which models keep what tells them where tokens are."""


def is_positional(name: str, module: nn.Module | None = None) -> bool:
    """Whether a name, or a module's class, says that it tells where tokens are."""
    kind = "" if module is None else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(module).__name__)
    return bool(POSITIONAL.search(name) or POSITIONAL.search(kind))


class _Flat(TorchFunctionMode):
    """Angles are all 0: rotary positions that are computed on the way turn nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name not in ("cos", "sin", "polar"):
            return func(*args, **kwargs)
        self.asked = True
        if name == "polar":
            return func(args[0], torch.zeros_like(args[1]))
        return func(torch.zeros_like(args[0]), **kwargs)


class _Flattened(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Flat():
            return self.model(*args, **kwargs)


def placeless(model: nn.Module, call: Call) -> nn.Module | None:
    """A copy for which all tokens stand in one place; None if nothing in it tells places.

    Args:
        model: The model.
        call: What it is asked, to see whether it computes angles on the way.
    """
    model = copy.deepcopy(model)
    with _Flat() as mode:
        run(model, call)
    found = mode.asked
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if is_positional(name) and tensor.is_floating_point():
                found = True
                tensor.fill_(1.0 if re.search(r"(^|[._])cos", name) else 0.0)
    for name, module in model.named_modules():
        if name and is_positional(name.rsplit(".", 1)[-1], module):
            if any(True for _ in module.parameters()):
                continue  # its parameters are zero by now
            found = True
            module.register_forward_hook(_silence)
    return _Flattened(model) if found else None


def _silence(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """What a part that tells places gives when it tells none."""
    streams = [each for each in args if isinstance(each, Tensor) and each.is_floating_point()]
    if isinstance(output, Tensor):
        same = [each for each in streams if each.shape == output.shape]
        return same[0] if same else torch.zeros_like(output)
    if isinstance(output, tuple) and len(output) == 2:
        if len(streams) >= 2 and all(
            a.shape == b.shape for a, b in zip(streams, output, strict=False)
        ):
            return tuple(streams[:2])
        cos, sin = output
        return torch.ones_like(cos), torch.zeros_like(sin)
    return output
