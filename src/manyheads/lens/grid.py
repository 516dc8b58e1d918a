"""All heads on one page: a row a layer, a column a head."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.lens.heatmap import FRAME, paint
from manyheads.lens.labels import Label, label, language_of, token_labels
from manyheads.lens.maps import (
    Limits,
    Map,
    Marks,
    check_heads,
    check_labels,
    check_marks,
    check_values,
    check_weights,
)
from manyheads.lens.page import BAR, EDGE, HEADER, NAME, OWN_BAR, Page, lay_out, size_cells
from manyheads.lens.paper import FAINT, plain_settings, save, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def draw_heads(
    weights: Mapping[str, Float[Tensor, "heads q_len kv_len"]],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    *,
    title: str = "",
    heads: Sequence[int] | None = None,
    names: Mapping[tuple[str, int], str] | None = None,
    marks: Marks = (),
    limits: Limits = "unit",
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw every head of every layer: who reads whom, each head by itself.

    Heads are never averaged: two sharp heads that disagree average to a map that shows neither.

    Args:
        weights: By the name of a layer, from top to bottom; one sample, after the softmax.
        query_labels: A label for each row; the text of its token, shown literally.
        key_labels: A label for each column.
        title: Stands above the page.
        heads: Which heads to draw, in this order; None draws all.
        names: What to write above a head, by (layer, head), instead of its number.
        marks: Cells to outline, (query, key) each: where the weight is expected. For all heads,
            or by (layer, head) for those heads alone.
        limits: ``"unit"`` colours 0 to 1 with one scale; ``"own"`` gives each map its own.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window. More than 60 tokens get fewer labels; with
        more tokens than dots, each dot shows the largest weight it covers, and the scale says so.

    Raises:
        ShapeError: If a rank is not 3, shapes differ, something is empty, or the labels are not
            one a token.
        OptionError: If weights are not finite or not between 0 and 1; heads that are not there;
            names or marks of heads that are not drawn; marks outside of the map.
        MissingExtraError: Without matplotlib.

    Example:
        >>> import torch
        >>> eye = torch.eye(3).expand(2, 3, 3)
        >>> figure = draw_heads({"encoder 0": eye, "encoder 1": eye}, list("abc"), list("abc"))
        >>> len(figure.axes)  # four heads and the scale
        5
    """
    arrays = check_weights(weights)
    q_len, kv_len = next(iter(arrays.values())).shape[1:]
    query_labels = check_labels(query_labels, q_len, "query_labels", "q_len")
    key_labels = check_labels(key_labels, kv_len, "key_labels", "kv_len")
    chosen = check_heads(heads, arrays)
    maps = [
        Map(layer, head, array[head])
        for layer, array in arrays.items()
        for head in chosen
        if head < len(array)
    ]
    check_values(maps, limits)
    maps = _annotate(maps, names or {}, marks)

    with plain_settings():
        page = _draw_page(maps, chosen, query_labels, key_labels, title, limits)
        if path is not None:
            save(page.figure, path)
    return page.figure


def _annotate(
    maps: Sequence[Map],
    names: Mapping[tuple[str, int], str],
    marks: Marks,
) -> list[Map]:
    """The maps with their names and marks; refuse those of maps that are not drawn."""
    places = [(each.layer, each.head) for each in maps]
    of_some = marks if isinstance(marks, Mapping) else {}
    for what, given in {"names": names, "marks": of_some}.items():
        unknown = [place for place in given if place not in places]
        if unknown:
            raise OptionError(
                f"{what} must be of (layer, head) that are drawn; got {unknown[0]!r}. Drawn are "
                f"{_few(places)}."
            )
    shape = maps[0].weights.shape
    for_all = frozenset() if isinstance(marks, Mapping) else check_marks(marks, *shape)
    return [
        replace(
            each,
            name=names.get(place, f"head {each.head}"),
            marks=check_marks(of_some[place], *shape) if place in of_some else for_all,
        )
        for place, each in zip(places, maps, strict=True)
    ]


def _few(places: Sequence[tuple[str, int]]) -> str:
    shown = ", ".join(str(place) for place in places[:4])
    return shown + (", ..." if len(places) > 4 else "")


def _draw_page(
    maps: Sequence[Map],
    heads: Sequence[int],
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    title: str,
    limits: Limits,
) -> Page:
    layers = list(dict.fromkeys(each.layer for each in maps))
    cells = size_cells(len(query_labels), len(key_labels), len(heads))
    rows = token_labels(query_labels, cells.every)
    columns = token_labels(key_labels, cells.every)
    headed = any(layers) or len(maps) > 1
    heading = label(title, language_of([title]), width=200) if title else None
    page = lay_out(
        cells,
        len(layers),
        len(heads),
        rows,
        columns,
        title=heading,
        headed=headed,
        own_bars=limits == "own",
    )
    if heading:
        page.text(EDGE, EDGE, heading, 11.0)

    block = page.tokens_per_dot(len(query_labels), len(key_labels))
    places = {(layers.index(each.layer), heads.index(each.head)): each for each in maps}
    for (row, column), each in places.items():
        left, top = page.corner(row, column)
        axes = page.box(left, top, page.cells.width, page.cells.height)
        image = paint(axes, replace(each, block=block), limits)
        if headed:
            page.text(left, top - NAME, label(each.name), 7.5)
        if not any((row, before) in places for before in range(column)):
            _label_rows(axes, rows, page)
            if headed:
                name = label(each.layer, width=80)
                page.text(left, top - NAME - HEADER, name, 9.0)
        if not any((below, column) in places for below in range(row + 1, len(layers))):
            _label_columns(axes, columns, page)
        if limits == "own":
            _own_scale(page, image, left, top)
    if limits == "unit":
        _one_scale(page, image, len(layers), len(heads), block)
    return page


def _label_rows(axes: "Axes", rows: Sequence[Label], page: Page) -> None:
    _set_ticks(axes.yaxis, rows, page)
    axes.set_ylabel("query", fontsize=7, color=FAINT)
    axes.yaxis.set_label_coords(-(page.left - EDGE) / page.cells.width, 0.5)


def _label_columns(axes: "Axes", columns: Sequence[Label], page: Page) -> None:
    _set_ticks(axes.xaxis, columns, page)
    if page.upright:
        axes.tick_params("x", rotation=90)
    axes.set_xlabel("key", fontsize=7, color=FAINT, labelpad=2)


def _set_ticks(axis: "Axis", labels: Sequence[Label], page: Page) -> None:
    places = [place * page.cells.every for place in range(len(labels))]
    axis.set_ticks(places, [each.text for each in labels], fontsize=page.cells.font)
    axis.set_tick_params(length=2, width=0.5, pad=1.5, color=FRAME)
    for text, each in zip(axis.get_ticklabels(), labels, strict=True):
        write(text, each)


def _one_scale(page: Page, image: "AxesImage", rows: int, columns: int, block: int) -> None:
    """One colour scale for the page, at its right."""
    bottom = page.corner(rows - 1, 0)[1] + page.cells.height
    height = min(max(bottom - page.top, 0.9), 3.0)
    left = page.corner(0, columns)[0] + 0.05
    bar = page.figure.colorbar(image, cax=page.box(left, page.top, BAR, height), ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=6.5, length=2, width=0.5, pad=2)
    pooled = f", largest of {block} x {block}" if block > 1 else ""
    bar.set_label(f"attention weight{pooled}", fontsize=7, color=FAINT)
    bar.outline.set(edgecolor=FRAME, linewidth=0.5)


def _own_scale(page: Page, image: "AxesImage", left: float, top: float) -> None:
    """A colour scale for one map, at its side, with its smallest and largest value."""
    box = page.box(left + page.cells.width + 0.04, top, OWN_BAR, page.cells.height)
    low, high = image.get_clim()
    bar = page.figure.colorbar(image, cax=box, ticks=[low, high])
    bar.ax.set_yticklabels([f"{low:.2f}", f"{high:.2f}"])
    bar.ax.tick_params(labelsize=5.5, length=1.5, width=0.5, pad=1.5)
    bar.outline.set(edgecolor=FRAME, linewidth=0.5)
