"""Modules that are what their classes say and nothing else, and whether they still are."""

from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from manyheads.errors import OptionError


class NotBareError(OptionError):
    """A module is of another class, hooked, compiled, or computes its weights: call it instead."""


_CALLED = ("forward", "_compiled_call_impl")
"""What a module may have of its own that is called in place of its class's."""


class Bare:
    """What was found when modules were looked at, by someone who will not call them.

    Whoever takes weights out of modules must not pass by what people hang on them: hooks, other
    modules in their place, quantised weights, low-rank updates, compiled code.

    Example:
        >>> import torch
        >>> from manyheads.layers.bare import Bare
        >>> linear, bare = torch.nn.Linear(2, 3), Bare(torch.float32)
        >>> weight, bias = bare.weights(bare.module(linear, torch.nn.Linear))
        >>> bare.holds()
        True
        >>> hook = linear.register_forward_hook(print)
        >>> bare.holds()
        False
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._places: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._found: list[object] = []
        self._hooks: list[dict[int, Any]] = []

    def holds(self) -> bool:
        """Whether all is as it was found."""
        if any(self._hooks) or _has_any_global_hook():
            return False
        # In C from end to end, for a step of decoding asks for hundreds.
        now = map(dict.get, self._places, self._names)
        return all(map(is_, now, self._found))

    def part(self, module: nn.Module, name: str, *kinds: type[nn.Module]) -> Any:
        """The child of this name, of one of these classes."""
        part = module._modules.get(name)
        self._note(module._modules, name, part)
        return self.module(part, *kinds)

    def module(self, module: nn.Module | None, *kinds: type[nn.Module]) -> Any:
        """The module itself, of one of these classes.

        Raises:
            NotBareError: If to call it is not to call the forward of its class.
        """
        if module is None or type(module) not in kinds:
            raise _refusal(module)
        hooks, own = (module._forward_hooks, module._forward_pre_hooks), vars(module)
        if any(hooks) or any(own.get(name) is not None for name in _CALLED):
            raise _refusal(module)
        self._hooks += hooks
        for name in _CALLED:
            self._note(own, name, None)
        return module

    def weights(self, module: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a module, which are plain parameters on the CPU."""
        weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
        for name, found in (("weight", weight), ("bias", bias)):
            plain = type(found) is nn.Parameter and found.is_cpu and found.dtype is self.dtype
            if not plain and (found is not None or name == "weight" or name in vars(module)):
                raise _refusal(module)
            self._note(module._parameters, name, found)
        assert weight is not None
        return weight, bias

    def _note(self, place: dict[str, Any], name: str, found: object) -> None:
        self._places.append(place)
        self._names.append(name)
        self._found.append(found)


def _refusal(module: nn.Module | None) -> NotBareError:
    return NotBareError(
        f"a module must be of its own class, without hooks and of plain weights on the CPU; got "
        f"{type(module).__name__}. Call the model itself."
    )
