"""Masks on one page: a square each, a row asks, a column answers where it is dark."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.checks import check_tensor, check_text, check_texts
from manyheads.lens.heatmap import FRAME
from manyheads.lens.labels import Label, label
from manyheads.lens.page import measure
from manyheads.lens.paper import FAINT, INK, new_figure, picture_path, plain_settings, save, write
from manyheads.masks.picture import pool
from manyheads.shapes import check_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIDDEN, SEEN = "#e8eef4", "#1f5f99"
# Inches: the longer side of a mask, and the room around it.
SIDE, LEFT, TOP, BELOW, GAP, TITLE = 1.8, 0.5, 0.28, 0.38, 0.12, 0.3
# Cells that can be told apart; more are drawn as squares of several.
MOST_CELLS, MOST_LINES, TICKS = 256, 40, 5
FAINTEST = 0.3
LONGEST_TITLE, LONGEST_NAME = 120, 30


def draw_masks(
    masks: Mapping[str, Bool[Tensor, "_q_len _kv_len"]],
    *,
    title: str = "",
    columns: int = 4,
    axes: tuple[str, str] = ("query", "key"),
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw masks that are written out, side by side.

    Args:
        masks: By the name that stands above each, "" for none, bool (q_len, kv_len); see
            `Mask.dense`.
        title: Stands above the page.
        columns: How many masks in a row.
        axes: What a row and a column of a mask are.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window. Where there are more tokens than can be told
        apart, a cell stands for several, and is the darker the more of its pairs are seen.

    Raises:
        ShapeError: If a mask is not bool of two dimensions, or empty.
        OptionError: If there is no mask, no column, or the path is no picture's.
        MissingExtraError: Without matplotlib.

    Example:
        >>> import manyheads as mh
        >>> seen = {"causal": mh.Causal().dense(8)[0, 0], "window": mh.Window(2).dense(8)[0, 0]}
        >>> len(draw_masks(seen).axes)
        2
    """
    _check(masks)
    check_text("title", title)
    check_count("columns", columns)
    check_texts("axes", axes, 2, "axes=('query', 'key')")
    with plain_settings():
        target = picture_path(path)
        return save(_draw(masks, title, min(columns, len(masks)), axes), target)


def _check(masks: Mapping[str, Tensor]) -> None:
    if not isinstance(masks, Mapping):
        raise OptionError(
            f"masks must be given by their names; got masks={type(masks).__name__}. Write "
            f'{{"causal": Causal().dense(16)[0, 0]}}.'
        )
    if not masks:
        raise OptionError("masks must hold at least one mask; got none. Write one out with dense.")
    for name, seen in masks.items():
        check_tensor("masks", seen)
        if seen.ndim != 2 or not seen.numel() or seen.dtype.is_floating_point:
            raise ShapeError(
                f"a mask to draw must be bool (q_len, kv_len); got {seen.dtype} of shape "
                f"{tuple(seen.shape)} for {name!r}. Choose a sequence and a head: "
                f"mask.dense(16)[0, 0]."
            )


def _draw(
    masks: Mapping[str, Tensor], title: str, columns: int, words: tuple[str, str]
) -> "Figure":
    sizes = [_size(seen) for seen in masks.values()]
    wide = max(width for width, _ in sizes)
    names = list(masks)
    rows = [names[first : first + columns] for first in range(0, len(names), columns)]
    size_of = dict(zip(names, sizes, strict=True))
    heights = [max(size_of[name][1] for name in row) for row in rows]
    room, head = TITLE if title else 0.0, TOP if any(masks) else GAP
    width = LEFT + columns * wide + (columns - 1) * (GAP + LEFT / 2) + GAP
    height = room + sum(heights) + len(rows) * (head + BELOW)
    heading = label(title, width=LONGEST_TITLE)
    if title:
        width = max(width, LEFT + measure([heading], 9.0)[0][0] + GAP)
    figure = new_figure(width, height)

    def write_at(left: float, top: float, shown: Label, font: float) -> None:
        place = (left / width, 1 - top / height)
        write(figure.text(*place, shown.text, fontsize=font, va="bottom", color=INK), shown)

    if title:
        write_at(LEFT, room, heading, 9.0)
    top = room + head
    for row, tall in zip(rows, heights, strict=True):
        for column, name in enumerate(row):
            across, down = size_of[name]
            left = LEFT + column * (wide + GAP + LEFT / 2)
            place = left / width, 1 - (top + down) / height, across / width, down / height
            if name:
                write_at(left, top - 0.05, label(name, width=LONGEST_NAME), 8.0)
            _paint(figure.add_axes(place), masks[name], words if column == 0 else ("", words[1]))
        top += tall + head + BELOW
    return figure


def _size(seen: Tensor) -> tuple[float, float]:
    q_len, kv_len = seen.shape
    longest = max(q_len, kv_len)
    # A row or two of very many keys is still as high as a finger.
    return max(SIDE * kv_len / longest, 0.2), max(SIDE * q_len / longest, 0.2)


def _paint(axes: "Axes", seen: Tensor, words: tuple[str, str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    q_len, kv_len = seen.shape
    shares = pool(seen, -(-max(q_len, kv_len) // MOST_CELLS))
    # One pair among many hidden ones must not fade away.
    shares = torch.where(shares > 0, FAINTEST + (1 - FAINTEST) * shares, shares)
    axes.imshow(
        shares.cpu().numpy(),
        cmap=LinearSegmentedColormap.from_list("seen", (HIDDEN, SEEN)),
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, kv_len - 0.5, q_len - 0.5, -0.5),  # in tokens, so that ticks count tokens
    )
    for axis, length, word in ((axes.yaxis, q_len, words[0]), (axes.xaxis, kv_len, words[1])):
        axis.set_ticks(_ticks(length))
        axis.set_tick_params(length=2, width=0.5, pad=1.5, color=FRAME, labelsize=6.5)
        axis.set_label_text(word, fontsize=7, color=FAINT)
        axis.labelpad = 2
    if max(q_len, kv_len) <= MOST_LINES:
        thin = min(0.08 * 72 * SIDE / max(q_len, kv_len), 0.7)
        axes.hlines([y + 0.5 for y in range(q_len - 1)], -0.5, kv_len - 0.5, "white", lw=thin)
        axes.vlines([x + 0.5 for x in range(kv_len - 1)], -0.5, q_len - 0.5, "white", lw=thin)
    for side in axes.spines.values():
        side.set(color=FRAME, linewidth=0.5)


def _ticks(length: int) -> list[int]:
    """Round places, `TICKS` of them or a few more."""
    step = next(
        step * 10**power
        for power in range(20)
        for step in (1, 2, 4, 5)
        if step * 10**power * TICKS >= length
    )
    return list(range(0, length, step))
