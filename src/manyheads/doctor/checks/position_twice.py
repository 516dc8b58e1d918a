"""Positions that are given to the same stream twice."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.copying import is_positional
from manyheads.doctor.path import running
from manyheads.doctor.patient import Patient

GIVES = {
    name: plain for plain in ("add", "sub", "mul") for name in (plain, f"i{plain}", f"r{plain}")
}
"""Operations that give positions to a stream; in place and reflected they are called otherwise."""
KEEPS = {
    "bfloat16", "cat", "chunk", "clone", "contiguous", "div", "double", "dropout", "expand",
    "flatten", "float", "get", "getitem", "half", "layer_norm", "neg", "permute", "reshape",
    "rms_norm", "split", "squeeze", "stack", "to", "transpose", "truediv", "type_as", "unbind",
    "unflatten", "unsqueeze", "view", "view_as_complex", "view_as_real",
}  # fmt: skip
"""What leaves to a stream the positions that it was given; products and softmaxes mix them."""


def look(patient: Patient) -> Iterator[Sign]:
    """Follow what is made of places alone, and see whether a stream is given it once more."""
    with running(patient.model) as path, _Places(patient, path) as places:
        patient.ask(patient.base)
    if not places.given:
        raise CannotTell("nothing that is made of places alone was added to a stream or turned it")
    for where in places.twice[:1]:
        unit = "times a stream was given the same positions"
        yield Sign(where or type(patient.model).__name__, 2, unit, "1")


@dataclass(frozen=True)
class _Stream:
    """A tensor that the input has reached: the positions that it was given, and by what.

    Args:
        given: Operations and positions.
        mixed: Whether a product or the like has made it since it was input.
    """

    given: tuple[tuple[str, Tensor], ...] = ()
    mixed: bool = False


class _Places(TorchFunctionMode):
    """Knows of each tensor whether it is made of places alone, or is a stream."""

    def __init__(self, patient: Patient, path: list[str]) -> None:
        super().__init__()
        self.path, self.given, self.twice = path, 0, list[str]()
        facts, base = patient.facts, patient.base
        streams = [base.get(slot) for slot in (facts.x, facts.context, facts.value)]
        named = [*patient.model.named_parameters(), *patient.model.named_buffers()]
        tables = [each for name, each in named if is_positional(name)]
        sources = [base.get(facts.positions), *tables]
        self.streams = {id(each): _Stream() for each in streams if isinstance(each, Tensor)}
        self.places = {id(each) for each in sources if isinstance(each, Tensor)}
        self.alive: list[Tensor] = []  # so that no id is given away

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        read = [*_tensors([*args, *kwargs.values()])]
        known = [self.streams[id(each)] for each in read if id(each) in self.streams]
        places = [each for each in read if id(each) in self.places]
        out = func(*args, **kwargs)
        made = [*_tensors([out])]
        self.alive += made
        if known:
            after = self._after(name, known, places)
            self.streams.update((id(each), after) for each in made)
        elif places or name == "arange":
            # What a table of places is written into is one.
            self.places |= {id(each) for each in ([args[0]] if name == "setitem" else made)}
        return out

    def _after(self, name: str, known: list[_Stream], places: list[Tensor]) -> _Stream:
        """What a stream is behind an operation that read streams and places."""
        given = tuple(each for stream in known for each in stream.given)
        operation = GIVES.get(name)
        if operation is None:
            kept = name in KEEPS
            return _Stream(given if kept else (), known[0].mixed if kept else name != "embedding")
        if len(known) == 1 and places and _tells_places(places[0]):
            self.given += 1
            if any(by == operation and _equal(each, places[0]) for by, each in given):
                self.twice.append(self.path[-1] if self.path else "")
            return _Stream((*given, (operation, places[0])), known[0].mixed)
        if operation != "mul" and any(each.mixed and not each.given for each in known):
            return _Stream((), True)  # a residual stream, to which a layer has added
        return _Stream(given, any(each.mixed for each in known))


def _tensors(values: Any) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple | list):
            yield from _tensors(each)


def _tells_places(x: Tensor) -> bool:
    """Whether it differs from place to place, and not by features alone."""
    return x.ndim > 1 and any(
        bool((x != x.narrow(axis, 0, 1)).any()) for axis in range(x.ndim - 1) if x.shape[axis] > 1
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    a, b = torch.squeeze(a), torch.squeeze(b)
    return a.shape == b.shape and bool((a == b).all())


CHECK = Check(
    code="position_twice",
    severity="warning",
    title="Positions are given twice",
    explanation="The same positions are added to a stream twice, or turn queries and keys twice: "
    "they weigh double, or distances count double. Weights that were trained with them once give "
    "other answers.",
    cure="Keep one of the two places: often an embedding adds what the model adds again, or a "
    "cache and the layer both apply rotary.",
    healthy="positions enter a stream once",
    source="Vaswani et al. 2017, section 3.5 (arXiv:1706.03762); Su et al. 2021 (arXiv:2104.09864)",
    look=look,
)
