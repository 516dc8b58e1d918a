"""Pages of all heads beside those of others: how large, how soon made, whether they open."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks import browser
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.viewers import VIEWERS, make

LENGTHS = (128, 512, 2048)
LONGEST = 32768
MOST_HELD = 10e9
"""Bytes that a viewer may need: what it held at a length tells of the next."""

SECONDS, MEGABYTES, OPEN_IN = 240.0, 5.0, 3.0


def measure(plan: Plan) -> Iterator[Row]:
    held: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for length in LENGTHS[:1] if plan.effort == "quick" else LENGTHS:
            for viewer in VIEWERS:
                cell = f"{viewer} {length}"
                if cell not in plan.done:
                    yield _row(cell, Path(folder), held)
                elif "held MB" in plan.done[cell]:
                    held[viewer] = _next(plan.done[cell]["held MB"] * 1e6)
        if plan.effort != "quick" and f"ours {LONGEST}" not in plan.done:
            yield _row(f"ours {LONGEST}", Path(folder), held)


def _row(cell: str, folder: Path, held: dict[str, float]) -> Row:
    viewer, length = cell.split()[0], int(cell.split()[1])
    row: Row = {"cell": cell, "viewer": viewer, "length": length}
    needs = held.get(viewer, 0.0)
    if viewer != "ours" and needs > MOST_HELD:
        held[viewer] = _next(needs)
        return {**row, "note": f"would hold about {needs / 1e9:.0f} GB"}
    path = folder / "page.html"
    made = make(viewer, length, path, SECONDS if length < LONGEST else 3000.0)
    if isinstance(made, str):
        return {**row, "note": made}
    held[viewer] = _next(made["bytes"])
    row |= {
        "MB": path.stat().st_size / 1e6,
        "CPU seconds": made["CPU seconds"],
        "seconds": made["seconds"],
        "held MB": made["bytes"] / 1e6,
    }
    if (lacking := browser.missing()) is not None:
        row["note"] = f"not opened: {lacking} is not installed"
    else:
        row["offline"], row["opens in s"] = browser.open_offline(path)
    path.unlink()
    return row


def _next(held: float) -> float:
    """Bytes of L x L numbers at the next length, which is four times as long."""
    return 16 * held


def judge(rows: Sequence[Row]) -> list[Goal]:
    ours = [row for row in rows if row["viewer"] == "ours"]
    sizes = [row["MB"] for row in ours if "MB" in row]
    reach = max((row["length"] for row in ours if "MB" in row), default=0)
    fits = bool(sizes) and max(sizes) <= MEGABYTES
    opened = [row for row in ours if "offline" in row]
    soon = [row["offline"] == "opens" and row["opens in s"] < OPEN_IN for row in opened]
    slowest = max((row["opens in s"] or float("inf") for row in opened), default=None)
    return [
        Goal(
            f"our page takes at most {MEGABYTES:g} MB at any length up to {LONGEST:,}",
            fits if reach == LONGEST or (sizes and not fits) else None,
            f"at most {max(sizes):.2f} MB up to {reach:,} tokens" if sizes else "",
        ),
        Goal(
            f"it opens without a network in under {OPEN_IN:g} s",
            all(soon) if opened else None,
            f"in {slowest:.2f} s at most" if slowest is not None else "",
        ),
    ]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot(xlabel="length, tokens", ylabel="page, MB")
    for viewer in VIEWERS:
        these = sorted(
            (row["length"], row["MB"]) for row in rows if row["viewer"] == viewer and "MB" in row
        )
        if these:
            axes.loglog(*zip(*these, strict=True), "o-", label=viewer)
    axes.legend()
    return figure


PAGES = Benchmark(
    "pages",
    "How large is a page of all heads of a model of 12 layers and 12 heads, and does it open?",
    ("cell",),
    measure,
    judge,
    draw,
)
