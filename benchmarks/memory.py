"""Peak memory of a self-attention layer beside layers written by hand."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from matplotlib.figure import Figure

from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.layer import BY_HAND, Cell, contenders
from manyheads.functional import cost

MARKS = [(), ("causal",), ("padding",), ("causal", "padding"), ("causal", "rotary")]


def peak_bytes(step: Callable[[], object]) -> int:
    """The most that torch's allocator held at once during a step, beyond what it held before.

    Read from the allocator itself, to the byte: the resident set of a process also holds what
    libraries loaded and what the system has not taken back yet.
    """
    step()  # Tables and the like that are made once are no part of a step.
    return cost.peak_bytes(step, torch.device("cpu"))


def cells(plan: Plan) -> Iterator[Cell]:
    sizes = {"quick": [(2, 64)], "usual": [(32, 128), (2, 2048)]}
    all_sizes = [(32, 128), (8, 512), (2, 2048), (1, 8192)]
    dtypes = [torch.float32, torch.bfloat16] if plan.effort == "full" else [torch.float32]
    for size, marks, dtype in itertools.product(sizes.get(plan.effort, all_sizes), MARKS, dtypes):
        for training in (False, True):
            yield Cell(*size, frozenset(marks), dtype, training)


def measure(plan: Plan) -> Iterator[Row]:
    for cell in cells(plan):
        steps = contenders(cell)
        peaks = {name: peak_bytes(steps[name]) / 2**20 for name in ("ours", *BY_HAND)}
        least = min(peaks[name] for name in BY_HAND)
        yield {
            "cell": str(cell),
            "ours MiB": peaks["ours"],
            **{f"{name} MiB": peaks[name] for name in BY_HAND},
            "ours / by hand": peaks["ours"] / least,
        }


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = "peak memory no higher than that of the better layer by hand"
    if not rows:
        return [Goal(promise, None, "")]
    kept = [row for row in rows if row["ours / by hand"] <= 1.001]
    worst = max(rows, key=lambda row: row["ours / by hand"])
    numbers = (
        f"{len(kept)} of {len(rows)} cells; worst {worst['ours / by hand']:.2f} at {worst['cell']}"
    )
    return [Goal(promise, len(kept) == len(rows), numbers)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 1 + 0.35 * len(rows)))
    axes = figure.add_subplot()
    for shift, name in enumerate(("ours MiB", *(f"{name} MiB" for name in BY_HAND))):
        places = [y + 0.25 * shift for y in range(len(rows))]
        axes.barh(places, [row[name] for row in rows], height=0.25, label=name[:-4])
    axes.set_yticks([y + 0.25 for y in range(len(rows))], [row["cell"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("peak memory of a step, MiB")
    axes.legend()
    return figure


MEMORY = Benchmark(
    "memory",
    "How much memory does a self-attention layer (d_model 512, 8 heads) take at its peak?",
    ("cell",),
    measure,
    judge,
    draw,
)
