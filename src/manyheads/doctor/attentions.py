"""The attention layers inside of a model, each a patient of its own."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.causality import with_causality
from manyheads.doctor.facts import Facts
from manyheads.doctor.hiding import hide
from manyheads.doctor.patient import Patient

ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
MOST = 4
"""Layers to look into: what is wrong with one is mostly wrong with its twins."""


def is_bare(model: nn.Module) -> bool:
    """Whether a module is attention and little else: no norm, no embedding, one attention."""
    kinds = [type(each).__name__ for each in model.modules()]
    inner = [each for each in model.modules() if each is not model and _is_attention("", each)]
    linear = sum(isinstance(each, nn.Linear) for each in model.modules())
    others = any(kind.endswith("Norm") or "Embedding" in kind for kind in kinds)
    return not others and len(inner) <= 1 and linear <= 6


def count_attentions(model: nn.Module) -> int:
    """How many attention layers a model has; 1 if it does not name any."""
    named = [name for name, module in model.named_modules() if name and _is_attention(name, module)]
    inner = [name for name in named if not any(other.startswith(f"{name}.") for other in named)]
    return max(1, len(inner))


def attentions(patient: Patient) -> Iterator[tuple[str, Patient]]:
    """Each attention layer by its path, with the call that the model makes of it.

    The model itself, if it is nothing else. Nothing is padding in these calls.
    """
    if is_bare(patient.model):
        yield type(patient.model).__name__, _unpadded(patient)
        return
    if patient not in _PARTS:
        _PARTS[patient] = list(_parts(_unpadded(patient)))
    yield from _PARTS[patient]


_PARTS: WeakKeyDictionary[Patient, list[tuple[str, Patient]]] = WeakKeyDictionary()
"""The layers of each patient, which several checks look into."""


def _unpadded(patient: Patient) -> Patient:
    if patient.facts.padding is None or patient.facts.real is None:
        return patient
    return replace(patient, call=hide(patient, patient.tokens(), patient.call))


def _parts(patient: Patient) -> Iterator[tuple[str, Patient]]:
    kinds: set[type] = set()
    for name, module, args, kwargs in _calls(patient):
        if type(module) in kinds or len(kinds) >= MOST:
            continue
        kinds.add(type(module))
        try:
            part = Patient.of(module, _uncached(Call.of(module, args, kwargs)), Facts())
            part = with_causality(part)
        except Exception:
            continue  # it wants to be called in a way of its own
        yield f"{name} ({type(module).__name__})", part


def _uncached(call: Call) -> Call:
    """The call without the caches that models hand their layers, which every call would fill."""
    for name, value in call.items():
        if re.search("past|cache", name) and not isinstance(value, bool):
            call = call.put(name, None)
    return call


def _is_attention(name: str, module: nn.Module) -> bool:
    named = ATTENTION.search(type(module).__name__) or ATTENTION.search(name.rsplit(".", 1)[-1])
    return bool(named) and any(True for _ in module.parameters())


def _calls(patient: Patient) -> list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    seen: list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    hooks = []
    for name, module in patient.model.named_modules():
        if name and _is_attention(name, module) and is_bare(module):

            def record(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name
            ) -> None:
                streams = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
                if any(each.ndim == 3 and each.is_floating_point() for each in streams):
                    seen.append((name, module, args, dict(kwargs)))

            hooks.append(module.register_forward_pre_hook(record, with_kwargs=True))
    try:
        patient.ask(patient.base)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
