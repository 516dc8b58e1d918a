"""How heads change from layer to layer."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from manyheads.errors import OptionError, is_named
from manyheads.lens.checks import check_text
from manyheads.lens.heatmap import FRAME, MARK
from manyheads.lens.labels import label
from manyheads.lens.paper import FAINT, INK, new_figure, picture_path, plain_settings, save, write
from manyheads.lens.summary import MEASURES, HeadSummary, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD = "#2271b0"
_WIDTH, _HEIGHT, _EACH = 3.6, 3.0, 0.22


def draw_profiles(
    heads: Sequence[HeadSummary],
    measures: Sequence[Measure] = ("effective_keys", "distance"),
    *,
    title: str = "",
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw numbers of heads against their layer: a dot a head, a line through the layers' means.

    Args:
        heads: From `summarize_heads`.
        measures: What to draw, side by side.
        title: Stands above the picture.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window.

    Raises:
        OptionError: If there are no heads, a measure is none or not known of them, or the path is
            no picture's.
        MissingExtraError: Without matplotlib.

    Example:
        >>> import torch
        >>> from manyheads.lens import summarize_heads
        >>> eye = torch.eye(3).expand(2, 3, 3)
        >>> figure = draw_profiles(summarize_heads({"layer 0": eye, "layer 1": eye}))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['effective keys', 'distance']
    """
    check_summaries(heads)
    check_text("title", title)
    if not isinstance(measures, Sequence) or not measures:
        raise OptionError(
            "measures must hold at least one; got none. Write ('effective_keys', 'distance')."
        )
    for measure in measures:
        if not is_named(measure, MEASURES) or any(getattr(head, measure) is None for head in heads):
            raise OptionError(
                f"measures must be known of all heads; got {measure!r}. Choose of "
                f"{', '.join(MEASURES)}; duplicate and induction want tokens=... in "
                f"summarize_heads."
            )
    layers = list(dict.fromkeys(head.layer for head in heads))
    with plain_settings():
        target = picture_path(path)
        width = max(_WIDTH, _EACH * len(layers) + 1.0) * len(measures)
        figure = new_figure(width, _HEIGHT)
        for place, measure in enumerate(measures):
            axes = figure.add_subplot(1, len(measures), place + 1)
            _draw(axes, heads, layers, measure)
        if title:
            shown = label(title, width=120)
            write(figure.suptitle(shown.text, fontsize=9, color=INK, x=0.02, ha="left"), shown)
        figure.tight_layout()
        return save(figure, target)


def check_summaries(heads: Sequence[HeadSummary]) -> None:
    """Refuse what is no list of heads' summaries, or an empty one."""
    is_list = isinstance(heads, Sequence)
    if not is_list or not heads or not all(isinstance(each, HeadSummary) for each in heads):
        shown = (
            type(heads).__name__ if not is_list else type(heads[0]).__name__ if heads else "none"
        )
        raise OptionError(
            f"heads must be summaries, at least one; got {shown}. Take them from summarize_heads."
        )


def _draw(
    axes: "Axes", heads: Sequence[HeadSummary], layers: Sequence[str], measure: Measure
) -> None:
    by_layer = [[getattr(each, measure) for each in heads if each.layer == name] for name in layers]
    for place, values in enumerate(by_layer):
        axes.plot([place] * len(values), values, "o", color=HEAD, markersize=3, alpha=0.55)
    means = [sum(values) / len(values) for values in by_layer]
    axes.plot(range(len(layers)), means, color=MARK, linewidth=1.2, label="mean of the layer")
    axes.set_xlabel("layer", fontsize=8, color=FAINT)
    # Right for heads that read another text too, where no key is the query's own token.
    named = "same place" if measure == "itself" else measure.replace("_", " ")
    axes.set_ylabel(named, fontsize=8, color=FAINT)
    axes.set_ylim(bottom=0)
    every = max(1, -(-len(layers) // 16))
    axes.set_xticks(range(0, len(layers), every))
    axes.tick_params(labelsize=7, color=FRAME)
    axes.legend(frameon=False, fontsize=7)
    for side in axes.spines.values():
        side.set(color=FRAME, linewidth=0.5)
