"""What a benchmark is, and what it says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from matplotlib.figure import Figure

Row = dict[str, Any]
Effort = Literal["quick", "usual", "full"]


@dataclass(frozen=True)
class Plan:
    """How hard to try.

    Args:
        effort: "quick" shows that it runs, "usual" is what results are made of, "full" leaves no
            cell out and may take hours.
        rounds: Rounds of every cell; None lets the benchmark choose.
        done: Rows that are known already and need no measuring, by their cells.
    """

    effort: Effort = "usual"
    rounds: int | None = None
    done: Mapping[str, Row] = field(default_factory=dict)

    def choose(self, *, quick: int, usual: int) -> int:
        """The rounds of a cell."""
        if self.rounds is not None:
            return self.rounds
        return quick if self.effort == "quick" else usual


@dataclass(frozen=True)
class Goal:
    """A promise, and whether it was kept.

    Args:
        promise: What was promised.
        kept: Whether the rows show it; None if no row speaks of it.
        numbers: What they show.
    """

    promise: str
    kept: bool | None
    numbers: str

    @property
    def verdict(self) -> str:
        """The answer in words."""
        return {True: "met", False: "**not met**", None: "not measured"}[self.kept]


@dataclass(frozen=True)
class Benchmark:
    """One question about speed or memory.

    Args:
        name: What the command line and the result files call it.
        question: What it answers, in one line.
        key: The columns that tell its rows apart.
        measure: Yields rows, each as soon as it is known.
        judge: The goals, from rows.
        draw: The rows as a picture.
    """

    name: str
    question: str
    key: tuple[str, ...]
    measure: Callable[[Plan], Iterator[Row]]
    judge: Callable[[Sequence[Row]], list[Goal]]
    draw: Callable[[Sequence[Row]], Figure]


def every(promise: str, rows: Sequence[Row], value: str, limit: Callable[[Row], float]) -> Goal:
    """A goal that every row must reach: the upper end of ``row[value]`` at most its limit."""
    rows = [row for row in rows if row.get(value) is not None]
    if not rows:
        return Goal(promise, None, "")
    kept = [row for row in rows if row[value]["high"] <= limit(row)]
    worst = max(rows, key=lambda row: row[value]["high"] / limit(row))
    numbers = (
        f"{len(kept)} of {len(rows)} cells; worst {worst[value]['median']:.2f} "
        f"({worst[value]['low']:.2f}-{worst[value]['high']:.2f}) at {worst['cell']}"
    )
    return Goal(promise, len(kept) == len(rows), numbers)
