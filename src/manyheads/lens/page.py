"""The measures of a page of heatmaps: what is where, in inches from the upper left corner."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyheads.lens.labels import Label, token_labels
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
class Band:
    """A row of maps, those of one layer, with the labels they share.

    Attributes:
        cells: The size of a map.
        rows: The queries' labels that are shown.
        columns: The keys' labels that are shown.
        beside: Room that the queries' labels take, in inches.
        below: Room that the keys' labels take, in inches.
        upright: Of each key's label, whether it stands upright, because lying it would collide.
        tokens: (q_len, kv_len).
    """

    cells: Cells
    rows: Sequence[Label]
    columns: Sequence[Label]
    beside: float
    below: float
    upright: tuple[bool, ...]
    tokens: tuple[int, int]


def make_band(query_labels: Sequence[str], key_labels: Sequence[str], maps_across: int) -> Band:
    """Measure the maps of one layer and the labels around them."""
    cells = size_cells(len(query_labels), len(key_labels), maps_across)
    rows = token_labels(query_labels, cells.every)
    columns = token_labels(key_labels, cells.every)
    sizes = measure(columns, cells.font)
    # A label a little wider than its column leans over a narrow neighbour and is easier to read.
    upright = tuple(width > 1.25 * cells.stride for width, _ in sizes)
    return Band(
        cells=cells,
        rows=rows,
        columns=columns,
        beside=max(width for width, _ in measure(rows, cells.font)) + TICK,
        below=max(size[not up] for size, up in zip(sizes, upright, strict=True)) + TICK + WORD,
        upright=upright,
        tokens=(len(query_labels), len(key_labels)),
    )


@dataclass(frozen=True)
class Page:
    """A figure with the places of its parts, in inches; see ``lay_out``.

    Attributes:
        figure: What is drawn on.
        left: Where the first map of a row begins.
        right: Where the last map of the broadest row ends, with its scale if it has one.
        tops: Where the maps of each band begin.
        gap: Between two maps of a row.
        block: How many tokens share a dot of the picture, each way.
    """

    figure: "Figure"
    left: float
    right: float
    tops: tuple[float, ...]
    gap: float
    block: int

    def box(self, left: float, top: float, width: float, height: float) -> "Axes":
        """New axes at so many inches from the page's upper left corner."""
        across, down = self.figure.get_size_inches()
        place = (left / across, 1 - (top + height) / down, width / across, height / down)
        return self.figure.add_axes(place)

    def text(self, left: float, top: float, label: Label, font: float) -> None:
        """Write at so many inches from the upper left corner, downwards from there."""
        across, down = self.figure.get_size_inches()
        place = (left / across, 1 - top / down)
        write(self.figure.text(*place, label.text, fontsize=font, va="top", color=INK), label)


def lay_out(
    bands: Sequence[Band],
    maps_across: int,
    *,
    title: Label | None,
    headed: bool,
    own_bars: bool,
) -> Page:
    """Decide the size of the page and of all that is on it.

    Args:
        bands: The rows of maps, from top to bottom.
        maps_across: How many maps in a row.
        title: Stands above all, if any.
        headed: Whether layers and heads are named above their maps.
        own_bars: Whether each map has a colour scale at its side, or the page one.
    """
    gap = OWN_ROOM if own_bars else GAP
    names = HEADER + NAME if headed else 0.0
    left = EDGE + WORD + max(band.beside for band in bands)
    right = left + max(maps_across * (band.cells.width + gap) for band in bands)

    tops, top = [], EDGE + (TITLE if title else 0.0)
    for band, next_band in zip(bands, [*bands[1:], None], strict=True):
        tops.append(top + names)
        top = tops[-1] + band.cells.height + GAP
        if not same_keys(band, next_band):
            top += band.below
    width = right + (EDGE if own_bars else BAR_ROOM)
    if title:
        width = max(width, measure([title], 11.0)[0][0] + 2 * EDGE)
    figure = new_figure(width, max(top, tops[0] + LEAST_BODY))
    dense = max(max(b.tokens[0] / b.cells.height, b.tokens[1] / b.cells.width) for b in bands)
    return Page(figure, left, right, tuple(tops), gap, math.ceil(dense / figure.dpi))


def same_keys(band: Band, other: Band | None) -> bool:
    """Whether one row of labels, below the lower of two bands, serves both."""
    return (
        other is not None
        and band.columns == other.columns
        and band.tokens[1] == other.tokens[1]
        and band.cells.width == other.cells.width
    )
