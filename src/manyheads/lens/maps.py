"""The checks that stand before a picture: are these maps, and do the labels fit them?"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.checks import check_tensor

Pair = tuple[int, int]
Marks = Iterable[Pair] | Mapping[tuple[str, int], Iterable[Pair]]
Labels = Sequence[str] | Mapping[str, Sequence[str]]
Limits = Literal["unit", "own"]
Rows = dict[str, dict[int, "Map"]]


@dataclass(frozen=True)
class Map:
    """One head's weights with what is drawn around them; a dot shows block x block of them."""

    layer: str
    head: int
    weights: np.ndarray
    name: str = ""
    marks: frozenset[Pair] = frozenset()
    block: int = 1


def check_weights(weights: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Refuse what is no set of maps; give the maps as float32 arrays."""
    if not isinstance(weights, Mapping):
        raise ShapeError(
            f"weights must map a layer's name to (heads, q_len, kv_len); got "
            f'weights={type(weights).__name__}. Write {{"layer 0": weights}}.'
        )
    if not weights:
        raise ShapeError("weights must hold at least one layer; got weights={}. Give some.")
    for layer, tensor in weights.items():
        check_tensor("weights", tensor)
        if tensor.ndim != 3:
            cure = "Choose one sample, weights[0]." if tensor.ndim == 4 else "Keep the heads apart."
            raise ShapeError(
                f"weights must be (heads, q_len, kv_len); got shape {tuple(tensor.shape)} in layer "
                f"{layer!r}. {cure}"
            )
        if 0 in tensor.shape:
            raise ShapeError(
                f"weights must have heads, queries and keys; got shape {tuple(tensor.shape)} in "
                f"layer {layer!r}. Give at least one of each."
            )
    return {layer: tensor.detach().float().cpu().numpy() for layer, tensor in weights.items()}


def check_values(maps: Sequence[Map], limits: Limits) -> None:
    """Refuse maps that the colour scale could not show truthfully."""
    if limits not in ("unit", "own"):
        raise OptionError(
            f"limits must be 'unit' (0 to 1) or 'own' (each map's own range); got limits={limits!r}"
            ". Choose one of the two."
        )
    for each in maps:
        where = f"layer {each.layer!r} head {each.head}"
        if not np.isfinite(each.weights).all():
            number = int((~np.isfinite(each.weights)).sum())
            raise OptionError(
                f"weights must be finite; got {number} of NaN or inf in {where}. Find where they "
                f"arise: mh.attention gives 0 to a query that sees nobody."
            )
        # Weights of 16 bits may exceed 1 by their rounding.
        low, high = float(each.weights.min()), float(each.weights.max())
        if limits == "unit" and (low < -0.01 or high > 1.01):
            raise OptionError(
                f"weights must lie between 0 and 1; got {low:.3g} to {high:.3g} in {where}. Apply "
                f"the softmax first, or pass limits='own' to draw scores."
            )


def labels_of(name: str, labels: Labels, layer: str, length: int, axis: str) -> list[str]:
    """The labels of one layer's tokens; refuse those that are not one a token."""
    if isinstance(labels, Mapping):
        if layer not in labels:
            raise ShapeError(
                f"{name} must have the labels of each layer; got {name} of {sorted(labels)}, none "
                f"of {layer!r}. Add them, or give one list for all layers."
            )
        labels = labels[layer]
    if isinstance(labels, Tensor) or not isinstance(labels, Sized):
        raise ShapeError(
            f"{name} must be a list of texts; got {name}={type(labels).__name__}. Give one label a "
            f"token."
        )
    if len(labels) != length:
        raise ShapeError(
            f"{name} must be as many as {axis}={length} in layer {layer!r}; got {len(labels)}. "
            f"Give one label a token, special tokens and padding included; layers that read "
            f"different tokens take a dict by layer."
        )
    return [str(each) for each in labels]


def check_heads(heads: Sequence[int] | None, maps: Mapping[str, np.ndarray]) -> list[int]:
    """The heads to draw, in the order given; all of them if None."""
    most = max(len(each) for each in maps.values())
    if heads is None:
        return list(range(most))
    is_list = isinstance(heads, Sequence) and all(isinstance(head, int) for head in heads)
    if not is_list or not heads or not all(0 <= head < most for head in heads):
        raise OptionError(
            f"heads must be numbers from 0 to {most - 1}; got heads={heads!r}. Leave it out to "
            f"draw all."
        )
    return list(heads)


def check_marks(marks: Iterable[Pair], q_len: int, kv_len: int) -> frozenset[Pair]:
    """Refuse marked cells outside of the map."""
    try:
        pairs = frozenset((int(query), int(key)) for query, key in marks)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"marks must be pairs of a query and a key; got {marks!r}. Write [(0, 2), (1, 1)]."
        ) from error
    for query, key in sorted(pairs):
        if not (0 <= query < q_len and 0 <= key < kv_len):
            raise OptionError(
                f"marks must be (query, key) within q_len={q_len}, kv_len={kv_len}; got "
                f"{(query, key)}. Count both from 0."
            )
    return pairs


def annotate(rows: Rows, names: Mapping[tuple[str, int], str], marks: Marks) -> Rows:
    """The maps with their names and marks; refuse those of maps that are not drawn."""
    places = {(each.layer, each.head) for maps in rows.values() for each in maps.values()}
    of_some = marks if isinstance(marks, Mapping) else {}
    of_all: Any = () if isinstance(marks, Mapping) else marks
    of_all = tuple(of_all) if isinstance(of_all, Iterable) else of_all
    if not isinstance(names, Mapping):
        raise OptionError(
            f"names must be by (layer, head); got names={type(names).__name__}. Write "
            f"{{('layer 0', 3): 'previous token'}}."
        )
    for what, given in {"names": names, "marks": of_some}.items():
        unknown = [place for place in given if place not in places]
        if unknown:
            raise OptionError(
                f"{what} must be of (layer, head) that are drawn; got {unknown[0]!r}. Drawn are "
                f"{', '.join(map(str, sorted(places)[:4]))}{', ...' * (len(places) > 4)}."
            )

    def with_both(each: Map) -> Map:
        place = (each.layer, each.head)
        pairs = check_marks(of_some.get(place, of_all), *each.weights.shape)
        return replace(each, name=names.get(place, f"head {each.head}"), marks=pairs)

    return {
        layer: {column: with_both(each) for column, each in maps.items()}
        for layer, maps in rows.items()
    }
