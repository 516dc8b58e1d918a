"""One head as a heatmap: a query a row, a key a column."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.lens.checks import check_tensor
from manyheads.lens.maps import Limits, Map, Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# From white to ink in one hue, lightness falling evenly, so that the scale reads the same without
# any colour; the orange of marks is apart from it for every colour vision (Okabe and Ito 2008).
COLOURS = ("#ffffff", "#cfe3f2", "#93c3e2", "#4f9bcb", "#2271b0", "#114a87", "#08264f")
MARK, FRAME = "#d55e00", "#9a9a9a"


def draw_heatmap(
    weights: Float[Tensor, "q_len kv_len"],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    *,
    title: str = "",
    marks: Iterable[Pair] = (),
    limits: Limits = "unit",
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw who reads whom in one head.

    Args:
        weights: After the softmax.
        query_labels: A label for each row; the text of its token, shown literally.
        key_labels: A label for each column.
        title: Stands above the map.
        marks: Cells to outline, (query, key) each: where the weight is expected.
        limits: ``"unit"`` colours 0 to 1; ``"own"`` from the smallest to the largest weight.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window. More than 60 tokens get fewer labels; with
        more tokens than dots, each dot shows the largest weight it covers, and the scale says so.

    Raises:
        ShapeError: If weights are not of rank 2, are empty, or the labels are not one a token.
        OptionError: If weights are not finite or not between 0 and 1, or a mark is outside.
        MissingExtraError: Without matplotlib.

    Example:
        >>> import torch
        >>> figure = draw_heatmap(torch.eye(3), list("abc"), list("abc"), title="itself")
        >>> len(figure.axes)  # the map and its scale
        2
    """
    from manyheads.lens.grid import draw_heads

    check_tensor("weights", weights)
    if weights.ndim != 2:
        raise ShapeError(
            f"weights must be (q_len, kv_len); got shape {tuple(weights.shape)}. Choose one head, "
            f"or draw all with draw_heads."
        )
    return draw_heads(
        {"": weights[None]},
        query_labels,
        key_labels,
        title=title,
        names={("", 0): ""},
        marks=marks,
        limits=limits,
        path=path,
    )


def paint(axes: "Axes", each: Map, limits: Limits) -> "AxesImage":
    """Fill one axes with one map; labels are the page's business."""
    from matplotlib.colors import LinearSegmentedColormap

    low, high = (0.0, 1.0) if limits == "unit" else _own_range(each)
    q_len, kv_len = each.weights.shape
    image = axes.imshow(
        pool(each.weights, each.block),
        cmap=LinearSegmentedColormap.from_list("attention", COLOURS),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        # In tokens, pooled or not, so that ticks and marks count tokens.
        extent=(-0.5, kv_len - 0.5, q_len - 0.5, -0.5),
    )
    for side in axes.spines.values():
        side.set(color=FRAME, linewidth=0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    outline(axes, each.marks)
    return image


def pool(weights: np.ndarray, block: int) -> np.ndarray:
    """The largest weight of each block x block cells; the last block may be smaller.

    A mean would fade a sharp head to nothing where one dot stands for many tokens.
    """
    if block == 1:
        return weights
    rows = np.maximum.reduceat(weights, np.arange(0, weights.shape[0], block), axis=0)
    return np.maximum.reduceat(rows, np.arange(0, weights.shape[1], block), axis=1)


def _own_range(each: Map) -> tuple[float, float]:
    low, high = float(each.weights.min()), float(each.weights.max())
    # A map of one value has no range; the scale still needs one.
    return (low, high) if high > low else (low, low + 1e-6)


def outline(axes: "Axes", marks: Iterable[Pair]) -> None:
    """Draw the border around marked cells, once where they touch."""
    from matplotlib.collections import LineCollection

    lines = borders(frozenset(marks))
    if lines:
        # Not clipped, so that a border on the map's edge is as wide as the others.
        axes.add_collection(
            LineCollection(
                lines, colors=MARK, linewidths=1.2, capstyle="projecting", clip_on=False
            ),
            autolim=False,
        )


def borders(marked: frozenset[Pair]) -> list[list[tuple[float, float]]]:
    """The lines, each as long as it is straight, that part marked cells from the others.

    Example:
        >>> len(borders(frozenset({(0, 0), (0, 1)})))  # a rectangle
        4
    """
    level: dict[float, list[int]] = {}
    upright: dict[float, list[int]] = {}
    for query, key in marked:
        for row in (query - 1, query + 1):
            if (row, key) not in marked:
                level.setdefault((query + row) / 2, []).append(key)
        for column in (key - 1, key + 1):
            if (query, column) not in marked:
                upright.setdefault((key + column) / 2, []).append(query)
    lines = [[(a, y), (b, y)] for y, keys in level.items() for a, b in _runs(keys)]
    return lines + [[(x, a), (x, b)] for x, queries in upright.items() for a, b in _runs(queries)]


def _runs(places: Iterable[int]) -> list[tuple[float, float]]:
    """Where unbroken runs of cells begin and end."""
    runs: list[tuple[float, float]] = []
    for place in sorted(set(places)):
        if runs and runs[-1][1] == place - 0.5:
            runs[-1] = (runs[-1][0], place + 0.5)
        else:
            runs.append((place - 0.5, place + 0.5))
    return runs
