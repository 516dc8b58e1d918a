"""Time and memory of an approximation beside exact attention, against the length."""

import os
from typing import TYPE_CHECKING

from manyheads.errors import OptionError
from manyheads.functional import Comparison
from manyheads.lens.heatmap import FRAME, MARK
from manyheads.lens.paper import FAINT, INK, new_figure, picture_path, plain_settings, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXACT = "#2271b0"


def draw_comparison(
    comparison: Comparison, *, path: str | os.PathLike[str] | None = None
) -> "Figure":
    """Draw seconds and bytes of both functions against the length, powers on both axes.

    A dashed line stands where the approximation starts to be faster.

    Args:
        comparison: What `compare` found, of one length at least.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window.

    Raises:
        OptionError: If nothing was timed, or the path is no picture's.
        MissingExtraError: Without matplotlib.

    Example:
        >>> from manyheads.functional import Comparison, Cost
        >>> costs = (Cost(64, 0.1, 0.2, 100, 300), Cost(128, 0.4, 0.4, 200, 600))
        >>> found = Comparison("exact", "near", (64, 64), 0.1, 0.2, None, costs, None)
        >>> [axes.get_ylabel() for axes in draw_comparison(found).axes]
        ['seconds', 'MB']
    """
    if not isinstance(comparison, Comparison):
        raise OptionError(
            f"comparison must be what compare found; got comparison={type(comparison).__name__}. "
            f"Write draw_comparison(mh.compare(...))."
        )
    if not comparison.costs:
        raise OptionError(
            "comparison must hold at least one cost; got none. Let compare(...) time some lengths."
        )
    with plain_settings():
        target = picture_path(path)
        figure = new_figure(8.0, 3.4)
        seconds, memory = figure.subplots(1, 2)
        costs, names = comparison.costs, (comparison.exact, comparison.approximate)
        lengths = [cost.length for cost in costs]
        times = [(c.exact_seconds, c.approximate_seconds) for c in costs]
        held = [(c.exact_bytes / 1e6, c.approximate_bytes / 1e6) for c in costs]
        _draw(seconds, "seconds", names, lengths, times)
        _draw(memory, "MB", names, lengths, held)
        if comparison.wins_from:
            seconds.axvline(comparison.wins_from, color=FAINT, linewidth=0.8, linestyle="--")
        seconds.set_title(comparison.verdict, fontsize=8, color=INK, loc="left")
        figure.tight_layout()
        return save(figure, target)


def _draw(
    axes: "Axes",
    unit: str,
    names: tuple[str, str],
    lengths: list[int],
    values: list[tuple[float, float]],
) -> None:
    for name, line, colour in zip(names, zip(*values, strict=True), (EXACT, MARK), strict=True):
        axes.plot(lengths, line, marker="o", markersize=3, color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="length, in tokens", ylabel=unit)
    axes.set_xticks(lengths, [str(length) for length in lengths], fontsize=7)
    axes.minorticks_off()
    axes.tick_params(labelsize=7)
    for side in axes.spines.values():
        side.set(color=FRAME, linewidth=0.5)
    axes.legend(frameon=False, fontsize=7)
