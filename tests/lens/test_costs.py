import pytest

from manyheads.errors import OptionError
from manyheads.functional import Comparison, Cost
from manyheads.lens import draw_comparison

COSTS = tuple(Cost(n, n**2 / 1e6, n / 1e3, n**2, 10 * n) for n in (256, 1024, 4096))


def comparison(costs=COSTS, wins_from=1000):
    return Comparison("exact", "near", (256, 256), 0.1, 0.2, 0.3, costs, wins_from)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_lines_hold_the_costs_and_the_title_says_who_wins(tmp_path, ending):
    path = tmp_path / f"costs.{ending}"
    figure = draw_comparison(comparison(), path=path)
    assert path.stat().st_size > 1000
    seconds, memory = figure.axes
    assert seconds.get_title(loc="left") == "near is faster from about 1000 tokens on"
    assert [list(line.get_ydata()) for line in seconds.lines[:2]] == [
        [cost.exact_seconds for cost in COSTS],
        [cost.approximate_seconds for cost in COSTS],
    ]
    assert list(seconds.lines[2].get_xdata()) == [1000, 1000]
    assert [text.get_text() for text in memory.get_xticklabels()] == ["256", "1024", "4096"]


def test_what_was_not_timed_cannot_be_drawn():
    with pytest.raises(OptionError, match="must hold at least one cost; got none"):
        draw_comparison(comparison(costs=()))
