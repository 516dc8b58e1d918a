"""What the explorer is told beside the weights: which readings there are, and their texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.labels import shorten, visible
from manyheads.lens.maps import Labels, labels_of
from manyheads.lens.numbers import ReadingNumbers, numbers_of
from manyheads.lens.portrait import Portrait
from manyheads.lens.summary import between_texts

Readings = Sequence[Portrait] | Mapping[str, Sequence[Portrait]]
"""The layers of one reading, or of several by name: of two texts, of two models."""
ReadingLabels = Labels | Mapping[str, Labels]

WIDEST = 64
"""A longer label is cut, so that 32,768 of them leave room for the weights."""


@dataclass(frozen=True)
class Contents:
    """What is shown, in order.

    Args:
        portraits: Of all readings, layer by layer.
        readings: The names of the readings.
        texts: The labels of each text that is read, once.
        places: For each portrait its reading, and the texts of its queries and keys, by number.
        own: For each portrait the user's numbers of its heads, by their name.
    """

    portraits: Sequence[Portrait]
    readings: Sequence[str]
    texts: Sequence[Sequence[str]]
    places: Sequence[Mapping[str, int]]
    own: Sequence[Mapping[str, list[float]]]

    @property
    def measures(self) -> list[str]:
        """The names of the user's numbers."""
        return list(dict.fromkeys(name for each in self.own for name in each))

    def told(self, title: str, headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All of it for JSON, with what `pack` says of each portrait's bytes."""
        layers = [
            {**header, **at, "numbers": {**header["numbers"], **own}}
            for header, at, own in zip(headers, self.places, self.own, strict=True)
        ]
        return {
            "title": title,
            "readings": self.readings,
            "texts": self.texts,
            "measures": self.measures,
            "layers": layers,
        }


def gather(
    portraits: Readings,
    query_labels: ReadingLabels,
    key_labels: ReadingLabels | None,
    numbers: ReadingNumbers | None,
) -> Contents:
    """Put portraits and labels together.

    Args:
        portraits: What `portray` kept, by layer; of several readings by their names.
        query_labels: A label for each query; by the name of a reading where there are several, by
            the name of a layer where layers read different tokens.
        key_labels: A label for each key, likewise; None takes those of the queries.
        numbers: The user's numbers of heads.

    Raises:
        OptionError: If there is nothing to show, or numbers have no good name or are not finite.
        ShapeError: If the labels are not one a token, or the numbers not one a head.
    """
    several = isinstance(portraits, Mapping)
    readings = dict(portraits) if isinstance(portraits, Mapping) else {"": portraits}
    for layers in readings.values() if readings else [portraits]:
        _check_portraits(layers)
    keys = query_labels if key_labels is None else key_labels
    texts: dict[tuple[str, ...], int] = {}
    kept, places = [], []
    for number, (reading, layers) in enumerate(readings.items()):
        sides = [
            ("queries", "query_labels", query_labels, "q_len"),
            ("keys", "key_labels", keys, "kv_len"),
        ]
        for portrait in layers:
            at = {"reading": number}
            for (side, name, labels, axis), length in zip(sides, portrait.lengths, strict=True):
                of = _of_reading(name, labels, reading) if several else labels
                own = labels_of(name, of, portrait.layer, length, axis)  # type: ignore[arg-type]
                at[side] = texts.setdefault(tuple(own), len(texts))
            if at["queries"] != at["keys"]:
                words = [between_texts(each) for each in portrait.summaries]
                portrait = replace(portrait, summaries=words)
            kept.append(portrait)
            places.append(at)
    shown = [[shorten(visible(token[: 2 * WIDEST]), WIDEST) for token in text] for text in texts]
    brought = numbers_of({} if numbers is None else numbers, readings, several)
    return Contents(kept, list(readings), shown, places, brought)


def _check_portraits(layers: Any) -> None:
    if isinstance(layers, Portrait):
        raise OptionError("portraits must be a list; got one Portrait. Write [portrait].")
    is_list = isinstance(layers, Sequence) and not isinstance(layers, str)
    wrong = [each for each in layers if not isinstance(each, Portrait)] if is_list else [layers]
    if wrong:
        raise OptionError(
            f"portraits must be what portray gives; got {type(wrong[0]).__name__}. Watch a model "
            f"with probe.watch(model, each=portray)."
        )
    if not layers:
        raise OptionError("portraits must hold at least one layer; got none. Watch a model first.")


def _of_reading(name: str, labels: ReadingLabels, reading: str) -> Any:
    if not isinstance(labels, Mapping):
        return labels  # two models that read one text
    if reading not in labels:
        raise ShapeError(
            f"{name} must have the labels of each reading; got {name} of {sorted(labels)}, none of "
            f"{reading!r}. Add them, or give one list for all."
        )
    return labels[reading]
