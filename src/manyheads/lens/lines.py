"""One head as lines between two rows of tokens."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.checks import check_tensor, check_text
from manyheads.lens.labels import label, token_labels
from manyheads.lens.maps import Map, check_values, labels_of
from manyheads.lens.page import measure
from manyheads.lens.paper import FAINT, INK, new_figure, picture_path, plain_settings, save, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, FONT = "#2271b0", 8.0
# Inches: a token's row, the room for lines, the margins.
_ROW, _ACROSS, _EDGE, _HEAD = 0.17, 2.4, 0.12, 0.34
MOST_TOKENS = 200


def draw_lines(
    weights: Float[Tensor, "q_len kv_len"],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    *,
    title: str = "",
    least: float = 0.02,
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw one head as lines from queries, at the left, to the keys that they read, at the right.

    A line is as strong as its weight.

    Args:
        weights: After the softmax.
        query_labels: A label for each query; the text of its token, shown literally.
        key_labels: A label for each key.
        title: Stands above the picture.
        least: Weights below it get no line.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window.

    Raises:
        ShapeError: If weights are not of rank 2, more than 200 tokens long, or the labels are not
            one a token.
        OptionError: If weights are not finite or not between 0 and 1, or the path is no picture's.
        MissingExtraError: Without matplotlib.

    Example:
        >>> import torch
        >>> figure = draw_lines(torch.eye(3), list("abc"), list("abc"))
        >>> len(figure.axes[0].collections[0].get_segments())
        3
    """
    check_tensor("weights", weights)
    check_text("title", title)
    if weights.ndim != 2 or 0 in weights.shape or max(weights.shape) > MOST_TOKENS:
        raise ShapeError(
            f"weights must be (q_len, kv_len) of at most {MOST_TOKENS} tokens; got shape "
            f"{tuple(weights.shape)}. Choose one head and a window of it."
        )
    if not isinstance(least, int | float) or not 0 <= least <= 1:
        raise OptionError(f"least must be from 0 to 1; got least={least}. Write 0.02, for one.")
    q_len, kv_len = weights.shape
    queries = labels_of("query_labels", query_labels, "", q_len, "q_len")
    keys = labels_of("key_labels", key_labels, "", kv_len, "kv_len")
    array = weights.detach().float().cpu().numpy()
    check_values([Map("", 0, array)], "unit")
    lines = [
        (i, j, min(1.0, float(array[i, j]))) for i in range(q_len) for j in range(kv_len)
        if array[i, j] >= least and array[i, j] > 0
    ]  # fmt: skip
    with plain_settings():
        target = picture_path(path)
        return save(_draw(lines, queries, keys, title), target)


def _draw(
    lines: Sequence[tuple[int, int, float]], queries: list[str], keys: list[str], title: str
) -> "Figure":
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    left, right = token_labels(queries), token_labels(keys)
    beside, behind = (max(width for width, _ in measure(side, FONT)) for side in (left, right))
    rows = max(len(left), len(right))
    top = _HEAD if title else _EDGE
    heading = label(title, width=80)
    width = 2 * _EDGE + beside + _ACROSS + behind
    if title:
        width = max(width, 2 * _EDGE + measure([heading], 10.0)[0][0])
    height = top + _ROW * rows + _EDGE
    figure = new_figure(width, height)
    place = (
        (_EDGE + beside) / width, _EDGE / height, _ACROSS / width, _ROW * rows / height,
    )  # fmt: skip
    axes = figure.add_axes(place)
    axes.set(xlim=(0, 1), ylim=(rows - 0.5, -0.5))
    axes.axis("off")
    axes.add_collection(
        LineCollection(
            [[(0.03, query), (0.97, key)] for query, key, _ in lines],
            colors=[to_rgba(LINE, weight) for _, _, weight in lines],
            linewidths=[0.4 + 1.8 * weight for _, _, weight in lines],
            capstyle="round",
        )
    )
    for side, x, anchor in ((left, 0.0, "right"), (right, 1.0, "left")):
        for row, each in enumerate(side):
            text = axes.text(x, row, each.text, fontsize=FONT, ha=anchor, va="center", color=INK)
            write(text, each)
    if title:
        at = (_EDGE / width, 1 - _EDGE / height)
        write(figure.text(*at, heading.text, fontsize=10.0, va="top", color=FAINT), heading)
    return figure
