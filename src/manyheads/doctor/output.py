"""What a model answers: which part of it is the main output, and which parts are weights."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from manyheads.doctor.facts import Slot

MAIN = ("logits", "last_hidden_state", "output", "out", "hidden_states", "x")
"""What models call their main output, the most telling first."""


def part(output: Any, slot: Slot | None) -> Any:
    """A part of an output by its index or name; None where there is none."""
    if slot is None:
        return output
    if isinstance(slot, str):
        found = output.get(slot) if isinstance(output, Mapping) else getattr(output, slot, None)
        return found
    if isinstance(output, Mapping):
        output = list(output.values())
    return output[slot] if isinstance(output, tuple | list) and slot < len(output) else None


def main_slot(output: Any) -> Slot | None:
    """Where the main output stands: None if it is the output itself.

    Returns:
        The slot; -1 if nothing in the output is a tensor of floats.
    """
    if _is_floats(output):
        return None
    for name in MAIN:
        if _is_floats(part(output, name)):
            return name
    if isinstance(output, Mapping):
        return next((name for name, value in output.items() if _is_floats(value)), -1)
    if isinstance(output, tuple | list):
        return next((index for index, value in enumerate(output) if _is_floats(value)), -1)
    return -1


def weights_slot(output: Any, q_len: int, kv_len: int) -> Slot | None:
    """Where attention weights stand in an output, if they do."""
    names: list[Slot] = ["attentions", "attn_weights", "weights"]
    if isinstance(output, tuple | list):
        names += range(1, len(output))
    return next((name for name in names if weights_of(output, name, q_len, kv_len)), None)


def weights_of(output: Any, slot: Slot | None, q_len: int, kv_len: int) -> list[Tensor]:
    """The weights in a slot: one tensor for each layer that hands some back."""
    found = part(output, slot) if slot is not None else None
    found = [found] if isinstance(found, Tensor) else found
    if not isinstance(found, tuple | list):
        return []
    return [
        each
        for each in found
        if _is_floats(each) and each.ndim >= 3 and tuple(each.shape[-2:]) == (q_len, kv_len)
    ]


def floats(output: Any) -> Iterator[Tensor]:
    """Every tensor of floats in an output, however deep."""
    if _is_floats(output):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from floats(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from floats(value)
    elif is_dataclass(output):
        for field in fields(output):
            yield from floats(getattr(output, field.name))


def _is_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
