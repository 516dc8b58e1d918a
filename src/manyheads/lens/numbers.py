"""Numbers of heads that the user brings, to sort the heads of a page by."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Real
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.portrait import Portrait
from manyheads.lens.summary import MEASURES, NAMES

Numbers = Mapping[
    str,
    Real[Tensor, "_layers _heads"]
    | Sequence[Sequence[float]]
    | Mapping[str, Real[Tensor, " _heads"] | Sequence[float]],
]
"""By their name: (layers, heads), or (heads,) by the name of a layer."""
ReadingNumbers = Numbers | Mapping[str, Numbers]

LONGEST = 40
_TAKEN = {*MEASURES, *NAMES.values(), "effective keys", "difference"}


def numbers_of(
    numbers: ReadingNumbers, readings: Mapping[str, Sequence[Portrait]], several: bool
) -> list[dict[str, list[float]]]:
    """What the user's numbers say of each portrait, reading by reading and layer by layer.

    Args:
        numbers: As `write_page` takes them.
        readings: The portraits, by the name of their reading.
        several: Whether readings have names, by which numbers are given too.

    Raises:
        OptionError: If a name is taken or no name, a reading is unknown, or a number is not finite.
        ShapeError: If there is not one number a head.
    """
    if not isinstance(numbers, Mapping):
        raise OptionError(
            f"numbers must be given by their name; got numbers={type(numbers).__name__}. Write "
            f'{{"importance": values}}, with values of (layers, heads).'
        )
    if several:
        unknown = [name for name in numbers if name not in readings]
        if unknown:
            raise OptionError(
                f"numbers must be given by the name of a reading; got {unknown[0]!r}, and readings "
                f"of {list(readings)}. Write {{reading: {{name: values}}}}."
            )
    found = []
    for reading, portraits in readings.items():
        own: Any = numbers.get(reading, {}) if several else numbers
        of_layers: list[dict[str, list[float]]] = [{} for _ in portraits]
        for name, values in own.items():
            _check_name(name)
            for place, portrait in enumerate(portraits):
                row = _row(name, values, portrait, place, len(portraits))
                of_layers[place][name] = row.double().tolist()
        found += of_layers
    return found


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name.strip()) <= LONGEST:
        raise OptionError(
            f"numbers must have names of 1 to {LONGEST} characters; got {name!r}. Name them after "
            f"what they tell, such as 'importance'."
        )
    if name in _TAKEN:
        raise OptionError(
            f"numbers must have names of their own; got {name!r}, which the page has already. "
            f"Write {'my ' + name!r}, for one."
        )


def _row(name: str, values: Any, portrait: Portrait, place: int, layers: int) -> Tensor:
    """One number for each head of a layer."""
    if isinstance(values, Mapping):
        if portrait.layer not in values:
            raise ShapeError(
                f"numbers must have a row for each layer; got {name!r} of {sorted(values)}, none "
                f"of {portrait.layer!r}. Add it."
            )
        row = values[portrait.layer]
    else:
        row = values[place] if _counts(values) == layers else None
    heads = len(portrait.summaries)
    try:
        numbers = torch.as_tensor(row).detach()
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.zeros(0, 0)
    if tuple(numbers.shape) != (heads,) or numbers.is_complex():
        raise ShapeError(
            f"numbers must be one a head, (layers, heads) with {layers} layers and {heads} heads "
            f"in {portrait.layer!r}; got {name!r} of {_told(values)}. Average over sequences first."
        )
    if numbers.is_meta:
        raise OptionError(
            f"numbers must hold values; got {name!r} on the meta device. Compute them on another."
        )
    if not bool(numbers.double().isfinite().all()):
        head = int((~numbers.double().isfinite()).nonzero()[0])
        raise OptionError(
            f"numbers must be finite; got {name!r} of {float(numbers[head])} at head {head} of "
            f"{portrait.layer!r}. Give heads without a number the least of the others."
        )
    return numbers.cpu()


def _counts(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def _told(values: Any) -> str:
    if isinstance(values, Tensor):
        return f"shape {tuple(values.shape)}"
    return type(values).__name__
