"""The checks that stand before a picture: are these maps, and do the labels fit them?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from manyheads.errors import OptionError, ShapeError

Pair = tuple[int, int]
Marks = Iterable[Pair] | Mapping[tuple[str, int], Iterable[Pair]]
Limits = Literal["unit", "own"]


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
    """Refuse what is no set of maps of one shape; give the maps as float32 arrays."""
    if not isinstance(weights, Mapping):
        raise ShapeError(
            f"weights must map a layer's name to (heads, q_len, kv_len); got "
            f'weights={type(weights).__name__}. Write {{"layer 0": weights}}.'
        )
    if not weights:
        raise ShapeError("weights must hold at least one layer; got weights={}. Give some.")
    shapes = {}
    for layer, tensor in weights.items():
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
        shapes[layer] = tuple(tensor.shape[1:])
    if len(set(shapes.values())) > 1:
        raise ShapeError(
            f"weights must have one q_len and kv_len in all layers; got {shapes}. Draw layers of "
            f"other lengths, such as cross-attention, in a picture of their own."
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


def check_labels(labels: Sequence[str], length: int, name: str, axis: str) -> list[str]:
    """Refuse labels that are not one a token."""
    if len(labels) != length:
        raise ShapeError(
            f"{name} must be as many as {axis}={length}; got {len(labels)}. Give one label a "
            f"token, special tokens and padding included."
        )
    return [str(label) for label in labels]


def check_heads(heads: Sequence[int] | None, maps: Mapping[str, np.ndarray]) -> list[int]:
    """The heads to draw, in the order given; all of them if None."""
    most = max(len(each) for each in maps.values())
    if heads is None:
        return list(range(most))
    wrong = [head for head in heads if not 0 <= head < most]
    if wrong or not heads:
        raise OptionError(
            f"heads must be numbers from 0 to {most - 1}; got heads={list(heads)}. Leave it out to "
            f"draw all."
        )
    return list(heads)


def check_marks(marks: Iterable[Pair], q_len: int, kv_len: int) -> frozenset[Pair]:
    """Refuse marked cells outside of the map."""
    pairs = frozenset((int(query), int(key)) for query, key in marks)
    for query, key in sorted(pairs):
        if not (0 <= query < q_len and 0 <= key < kv_len):
            raise OptionError(
                f"marks must be (query, key) within q_len={q_len}, kv_len={kv_len}; got "
                f"{(query, key)}. Count both from 0."
            )
    return pairs
