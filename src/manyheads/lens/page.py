"""The measures of a page of heatmaps: what is where, in inches from the upper left corner."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyheads.lens.labels import Label
from manyheads.lens.paper import INK, new_figure, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. PITCH is a comfortable row of text, TIGHT the least one can read.
PITCH, TIGHT = 0.125, 0.085
EDGE, TICK, TITLE, HEADER, NAME, WORD = 0.12, 0.05, 0.34, 0.2, 0.17, 0.2
BAR, BAR_ROOM, OWN_BAR, OWN_ROOM = 0.11, 0.62, 0.06, 0.42
GAP, LEAST_BODY = 0.12, 1.3
# A page of many heads grows up to here, then its cells shrink.
BREADTH, MOST_SIDE, LEAST_SIDE = 30.0, 7.5, 1.1
ALL_LABELS = 60


@dataclass(frozen=True)
class Cells:
    """The size of one map and of the text beside it.

    Attributes:
        width: Of a map, in inches.
        height: Of a map, in inches.
        font: Size of the labels, in points.
        every: One label for so many tokens.
        stride: From one label to the next, in inches.
    """

    width: float
    height: float
    font: float
    every: int
    stride: float


def size_cells(q_len: int, kv_len: int, maps_across: int) -> Cells:
    """Give every token a readable label up to 60 tokens; beyond, thin the labels out."""
    longest = max(q_len, kv_len)
    room = min(max(BREADTH / maps_across, LEAST_SIDE), MOST_SIDE)
    pitch = min(PITCH, room / longest)
    if longest <= ALL_LABELS:
        pitch = max(pitch, TIGHT)
    least = LEAST_SIDE if maps_across > 1 else 2.4 * LEAST_SIDE
    pitch = max(pitch, least / longest)
    # A hair less, because 0.085 / 0.085 may come out above 1.
    every = math.ceil(TIGHT / pitch - 1e-9)
    return Cells(
        width=max(pitch * kv_len, 0.3),
        height=max(pitch * q_len, 0.3),
        font=min(max(0.76 * 72 * pitch * every, 5.0), 9.0),
        every=every,
        stride=pitch * every,
    )


def measure(labels: Sequence[Label], font: float) -> list[tuple[float, float]]:
    """Width and height of each label, in inches."""
    figure = new_figure(1.0, 1.0)
    sizes = []
    for each in labels:
        text = write(figure.text(0, 0, each.text, fontsize=font), each)
        box = text.get_window_extent()
        sizes.append((float(box.width) / figure.dpi, float(box.height) / figure.dpi))
        text.remove()
    return sizes


@dataclass(frozen=True)
class Page:
    """A figure with the places of its parts, in inches; see ``lay_out``.

    Attributes:
        upright: Whether the keys' labels stand upright, because lying they would collide.
    """

    figure: "Figure"
    cells: Cells
    left: float
    top: float
    column_step: float
    row_step: float
    upright: bool

    def tokens_per_dot(self, q_len: int, kv_len: int) -> int:
        """How many tokens share a dot of the picture, each way."""
        dense = max(q_len / self.cells.height, kv_len / self.cells.width)
        return math.ceil(dense / self.figure.dpi)

    def box(self, left: float, top: float, width: float, height: float) -> "Axes":
        """New axes at so many inches from the page's upper left corner."""
        across, down = self.figure.get_size_inches()
        place = (left / across, 1 - (top + height) / down, width / across, height / down)
        return self.figure.add_axes(place)

    def corner(self, row: int, column: int) -> tuple[float, float]:
        """The upper left corner of a map."""
        return self.left + column * self.column_step, self.top + row * self.row_step

    def text(self, left: float, top: float, label: Label, font: float) -> None:
        """Write at so many inches from the upper left corner, downwards from there."""
        across, down = self.figure.get_size_inches()
        place = (left / across, 1 - top / down)
        write(self.figure.text(*place, label.text, fontsize=font, va="top", color=INK), label)


def lay_out(
    cells: Cells,
    layers: int,
    maps_across: int,
    rows: Sequence[Label],
    columns: Sequence[Label],
    *,
    title: Label | None,
    headed: bool,
    own_bars: bool,
) -> Page:
    """Decide the size of the page and of all that is on it.

    Args:
        cells: The size of one map, from ``size_cells``.
        layers: How many rows of maps.
        maps_across: How many maps in a row.
        rows: The queries' labels that are shown.
        columns: The keys' labels that are shown.
        title: Stands above all, if any.
        headed: Whether layers and heads are named above their maps.
        own_bars: Whether each map has a colour scale at its side, or the page one.
    """
    beside = max(width for width, _ in measure(rows, cells.font))
    sizes = measure(columns, cells.font)
    upright = max(width for width, _ in sizes) > cells.stride - 0.02
    below = max(size[0 if upright else 1] for size in sizes)
    names = HEADER + NAME if headed else 0.0

    left = EDGE + WORD + beside + TICK
    top = EDGE + (TITLE if title else 0.0) + names
    column_step = cells.width + (OWN_ROOM if own_bars else GAP)
    row_step = cells.height + names + GAP
    body = max((layers - 1) * row_step + cells.height + TICK + below + WORD, LEAST_BODY)
    right = EDGE if own_bars else BAR_ROOM
    width = left + maps_across * column_step + right
    if title:
        width = max(width, measure([title], 11.0)[0][0] + 2 * EDGE)
    return Page(
        figure=new_figure(width, top + body + EDGE),
        cells=cells,
        left=left,
        top=top,
        column_step=column_step,
        row_step=row_step,
        upright=upright,
    )
