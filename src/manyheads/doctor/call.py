"""The example call of a model, with arguments that can be found and replaced."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from manyheads.doctor.facts import Slot


@dataclass(frozen=True)
class Call:
    """Arguments of a model, and the names under which it takes them.

    Args:
        args: Those without a name.
        kwargs: Those with one.
        names: What the model calls its arguments, in order.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Call":
        """The call of a model, its names read from `forward`."""
        try:
            parameters = inspect.signature(model.forward).parameters.values()
        except (TypeError, ValueError):
            parameters = inspect.signature(lambda *args: None).parameters.values()
        spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return cls(args, dict(kwargs), tuple(p.name for p in parameters if p.kind not in spread))

    def items(self) -> Iterator[tuple[str, Any]]:
        """Each argument by its name; its index stands for one that has none."""
        for index, value in enumerate(self.args):
            yield self.names[index] if index < len(self.names) else str(index), value
        yield from self.kwargs.items()

    def settled(self, slot: Slot) -> Slot:
        """A slot as it is in this call: the index of a name that was given by its place."""
        if isinstance(slot, int) and slot >= len(self.args) and slot < len(self.names):
            slot = self.names[slot]
        if isinstance(slot, str) and slot in self.names:
            index = self.names.index(slot)
            return index if index < len(self.args) else slot
        return int(slot) if isinstance(slot, str) and slot.isdecimal() else slot

    def get(self, slot: Slot | None) -> Any:
        """The argument in a slot; None if there is none."""
        if slot is None:
            return None
        slot = self.settled(slot)
        if isinstance(slot, int):
            return self.args[slot] if slot < len(self.args) else None
        return self.kwargs.get(slot)

    def put(self, slot: Slot | None, value: Any) -> "Call":
        """The call with another argument, in every place where the old one stood."""
        if slot is None:
            return self
        old, slot = self.get(slot), self.settled(slot)

        def swapped(each: Any) -> Any:
            return value if isinstance(old, Tensor) and each is old else each

        args = [swapped(each) for each in self.args]
        kwargs = {name: swapped(each) for name, each in self.kwargs.items()}
        if isinstance(slot, int):
            args[slot] = value
        else:
            kwargs[slot] = value
        return Call(tuple(args), kwargs, self.names)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Call":
        """The call with every tensor mapped; one that stands in two places stays one."""
        done: dict[int, Tensor] = {}

        def mapped(each: Any) -> Any:
            if isinstance(each, Tensor):
                if id(each) not in done:
                    done[id(each)] = function(each)
                return done[id(each)]
            if isinstance(each, tuple | list) and not hasattr(each, "_fields"):
                return type(each)(mapped(part) for part in each)
            return each

        args = tuple(mapped(each) for each in self.args)
        return Call(args, {name: mapped(each) for name, each in self.kwargs.items()}, self.names)

    def apart(self, live: Any = None) -> "Call":
        """The call with copies of all that a model may change, tensors and one object excepted."""

        def own(each: Any) -> Any:
            if each is live or each is None or isinstance(each, Tensor | nn.Module | int | float):
                return each
            try:
                return copy.deepcopy(each)
            except Exception:  # of an object that there is only one of
                return each

        args = tuple(own(each) for each in self.args)
        return Call(args, {name: own(each) for name, each in self.kwargs.items()}, self.names)

    def leaves(self) -> list[Tensor]:
        """Every tensor in the arguments, however deep, once."""
        found: dict[int, Tensor] = {}
        self.map(lambda each: found.setdefault(id(each), each))
        return list(found.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each argument that is a tensor, by its name."""
        yield from ((name, value) for name, value in self.items() if isinstance(value, Tensor))
