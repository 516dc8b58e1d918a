"""All heads on one page: a row a layer, a column a head."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from manyheads.lens.checks import check_text
from manyheads.lens.ink import draw_maps
from manyheads.lens.labels import label, language_of
from manyheads.lens.maps import (
    Labels,
    Limits,
    Map,
    Marks,
    annotate,
    check_heads,
    check_values,
    check_weights,
    labels_of,
)
from manyheads.lens.page import EDGE, Band, Page, lay_out, make_band
from manyheads.lens.paper import picture_path, plain_settings, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_heads(
    weights: Mapping[str, Float[Tensor, "_heads _q_len _kv_len"]],
    query_labels: Labels,
    key_labels: Labels,
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
        query_labels: A label for each row; the text of its token, shown literally. By the name
            of a layer where layers read different tokens.
        key_labels: A label for each column, likewise.
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
        ShapeError: If a rank is not 3, something is empty, or the labels are not one a token.
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
    check_text("title", title)
    arrays = check_weights(weights)
    labels = {
        layer: (
            labels_of("query_labels", query_labels, layer, array.shape[1], "q_len"),
            labels_of("key_labels", key_labels, layer, array.shape[2], "kv_len"),
        )
        for layer, array in arrays.items()
    }
    chosen = check_heads(heads, arrays)
    rows = {
        layer: {
            column: Map(layer, head, array[head])
            for column, head in enumerate(chosen)
            if head < len(array)
        }
        for layer, array in arrays.items()
    }
    # A layer that has none of the chosen heads has no row.
    rows = annotate(
        {layer: maps for layer, maps in rows.items() if maps}, {} if names is None else names, marks
    )
    check_values([each for maps in rows.values() for each in maps.values()], limits)

    with plain_settings():
        target = picture_path(path)
        page = _draw(rows, [labels[layer] for layer in rows], len(chosen), title, limits)
        return save(page.figure, target)


def _draw(
    rows: Mapping[str, dict[int, Map]],
    labels: Sequence[tuple[Sequence[str], Sequence[str]]],
    maps_across: int,
    title: str,
    limits: Limits,
) -> Page:
    measured: dict[tuple[tuple[str, ...], ...], Band] = {}
    bands = []
    for queries, keys in labels:
        words = (tuple(queries), tuple(keys))
        # Layers that share their tokens are measured once.
        measured.setdefault(words, make_band(queries, keys, maps_across))
        bands.append(measured[words])
    headed = any(rows) or maps_across > 1
    heading = label(title, language_of([title]), width=200) if title else None
    page = lay_out(bands, maps_across, title=heading, headed=headed, own_bars=limits == "own")
    if heading:
        page.text(EDGE, EDGE, heading, 11.0)
    draw_maps(page, bands, list(rows.values()), limits, headed)
    return page
