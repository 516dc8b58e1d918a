"""Putting maps, labels and scales where the page has their places."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.lens.heatmap import FRAME, paint
from manyheads.lens.labels import Label, label
from manyheads.lens.maps import Limits, Map
from manyheads.lens.page import BAR, EDGE, HEADER, NAME, OWN_BAR, Band, Page, same_keys
from manyheads.lens.paper import FAINT, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.image import AxesImage


def draw_maps(
    page: Page, bands: Sequence[Band], rows: Sequence[dict[int, Map]], limits: Limits, headed: bool
) -> None:
    """Draw all maps, each with what belongs to its place.

    Args:
        page: What is drawn on.
        bands: The measures of each row.
        rows: The maps of each row, by column; a layer with fewer heads leaves columns out.
        limits: See ``draw_heads``.
        headed: Whether layers and heads are named.
    """
    for row, (band, maps) in enumerate(zip(bands, rows, strict=True)):
        for column, each in maps.items():
            left = page.left + column * (band.cells.width + page.gap)
            top = page.tops[row]
            axes = page.box(left, top, band.cells.width, band.cells.height)
            image = paint(axes, replace(each, block=page.block), limits)
            if headed:
                page.text(left, top - NAME, label(each.name), 7.5)
            if column == min(maps):
                _label_rows(axes, band, left)
                if headed:
                    page.text(left, top - NAME - HEADER, label(each.layer, width=80), 9.0)
            if _is_lowest(row, column, bands, rows):
                _label_columns(axes, band)
            if limits == "own":
                _own_scale(page, band, image, left, top)
    if limits == "unit":
        _one_scale(page, image, page.tops[-1] + bands[-1].cells.height)


def _is_lowest(
    row: int, column: int, bands: Sequence[Band], rows: Sequence[dict[int, Map]]
) -> bool:
    """Whether no map below shows this map's keys too, so that their labels belong here."""
    for below in range(row + 1, len(bands)):
        if not same_keys(bands[row], bands[below]):
            return True
        if column in rows[below]:
            return False
    return True


def _label_rows(axes: "Axes", band: Band, left: float) -> None:
    _set_ticks(axes.yaxis, band.rows, band)
    axes.set_ylabel("query", fontsize=7, color=FAINT)
    axes.yaxis.set_label_coords(-(left - EDGE) / band.cells.width, 0.5)


def _label_columns(axes: "Axes", band: Band) -> None:
    _set_ticks(axes.xaxis, band.columns, band)
    for text, upright in zip(axes.get_xticklabels(), band.upright, strict=True):
        text.set_rotation(90 if upright else 0)
    axes.set_xlabel("key", fontsize=7, color=FAINT, labelpad=2)


def _set_ticks(axis: "Axis", labels: Sequence[Label], band: Band) -> None:
    places = [place * band.cells.every for place in range(len(labels))]
    axis.set_ticks(places, [each.text for each in labels], fontsize=band.cells.font)
    axis.set_tick_params(length=2, width=0.5, pad=1.5, color=FRAME)
    for text, each in zip(axis.get_ticklabels(), labels, strict=True):
        write(text, each)


def _one_scale(page: Page, image: "AxesImage", bottom: float) -> None:
    """One colour scale for the page, at its right."""
    top = page.tops[0]
    height = min(max(bottom - top, 0.9), 3.0)
    bar = page.figure.colorbar(
        image, cax=page.box(page.right + 0.05, top, BAR, height), ticks=[0, 0.5, 1]
    )
    bar.ax.tick_params(labelsize=6.5, length=2, width=0.5, pad=2)
    pooled = f", largest of {page.block} x {page.block}" if page.block > 1 else ""
    bar.set_label(f"attention weight{pooled}", fontsize=7, color=FAINT)
    bar.outline.set(edgecolor=FRAME, linewidth=0.5)


def _own_scale(page: Page, band: Band, image: "AxesImage", left: float, top: float) -> None:
    """A colour scale for one map, at its side, with its smallest and largest value."""
    box = page.box(left + band.cells.width + 0.04, top, OWN_BAR, band.cells.height)
    low, high = image.get_clim()
    bar = page.figure.colorbar(image, cax=box, ticks=[low, high])
    bar.ax.set_yticklabels([f"{low:.2f}", f"{high:.2f}"])
    bar.ax.tick_params(labelsize=5.5, length=1.5, width=0.5, pad=1.5)
    bar.outline.set(edgecolor=FRAME, linewidth=0.5)
