"""What it costs to know what heads do: exact statistics beside the plain forward of the call."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.rounds import Contender, Times, interleave, ratio
from manyheads.functional import Statistics, cost

SHAPES = {"Llama": (8, 2), "BERT": (12, 12)}
HEAD_DIM = 64
LENGTHS = (512, 2048, 8192, 32768)
EAGER_UP_TO = 2048  # All weights take 10 GB at four times that.
MEGABYTES = 150.0


def _rows(found: Statistics) -> object:
    first = torch.arange(found.call.k.shape[2]) == 0
    at = found.mass(first), found.mass_behind(0), found.mass_behind(1)
    return found.lse(), found.entropy(), at


QUESTIONS: dict[str, tuple[Callable[[Statistics], object], float]] = {
    "lse, entropy, sink, self, previous": (_rows, 2.0),
    "distance": (lambda found: found.distance(), 4.0),
    "received": (lambda found: found.received(), 4.0),
    "mean map of 64 x 64": (lambda found: found.pooled(64, 64), 4.0),
    "peak": (lambda found: found.peak(), 6.5),
    "top 5": (lambda found: found.top(5), 6.5),
    "max map of 64 x 64": (lambda found: found.pooled(64, 64, "max"), 6.5),
}
"""Each with how many plain forwards it may take, what it needs of others included."""


def measure(plan: Plan) -> Iterator[Row]:
    lengths = (128,) if plan.effort == "quick" else LENGTHS
    for length in lengths:
        for shape in SHAPES:
            cells = {name: f"{shape} {length} {name}" for name in _asked(plan, shape, length)}
            if not set(cells.values()) <= plan.done.keys():
                yield from _rows_of(plan, shape, length, cells)


def _asked(plan: Plan, shape: str, length: int) -> list[str]:
    """What is asked: all, but where that takes a quarter of an hour."""
    costly = length == LENGTHS[-1] and shape == "BERT" and plan.effort != "full"
    return list(QUESTIONS)[: 1 if costly else None]


def _rows_of(plan: Plan, shape: str, length: int, cells: dict[str, str]) -> Iterator[Row]:
    torch.manual_seed(0)
    heads, kv_heads = SHAPES[shape]
    mask = mh.Causal() if shape == "Llama" else None
    q = torch.randn(1, heads, length, HEAD_DIM)
    k, v = torch.randn(2, 1, kv_heads, length, HEAD_DIM)
    steps: dict[str, Contender] = {
        "plain": partial(mh.attention, q, k, v, mask),
        **{name: partial(_answer, QUESTIONS[name][0], q, k, v, mask) for name in cells},
    }
    if length <= EAGER_UP_TO:
        steps["written out"] = partial(mh.attention_with_weights, q, k, v, mask)
    times, peaks = _costs(steps, plan, length)
    for name, cell in cells.items():
        row = {
            "cell": cell,
            "question": name,
            "shape": shape,
            "length": length,
            "limit": QUESTIONS[name][1],
            "ours ms": 1e3 * float(np.median(times[name])),
            "ours / plain": vars(ratio(times[name], times["plain"])),
            "extra MB": (peaks[name] - peaks["plain"]) / 1e6,
        }
        if "written out" in steps:
            row["written out / plain"] = vars(ratio(times["written out"], times["plain"]))
        yield row


def _answer(
    ask: Callable[[Statistics], object], q: Tensor, k: Tensor, v: Tensor, mask: mh.masks.Mask | None
) -> object:
    return ask(mh.statistics(q, k, v, mask))


def _costs(steps: dict[str, Contender], plan: Plan, length: int) -> tuple[Times, dict[str, int]]:
    """CPU seconds of each step in each round, and the most bytes that it holds at once."""
    peaks: dict[str, int] = {}

    def watched(name: str) -> None:
        peaks[name] = cost.peak_bytes(steps[name], torch.device("cpu"))

    if length == LENGTHS[-1]:
        # In one go: a step takes up to a minute, and to be watched costs it a hundredth.
        rounds = plan.choose(quick=1, usual=1)
        return interleave(
            {name: partial(watched, name) for name in steps}, rounds, warmups=0
        ), peaks
    times = interleave(steps, plan.choose(quick=1, usual=2 if length > EAGER_UP_TO else 7))
    for name in steps:
        watched(name)
    return times, peaks


def judge(rows: Sequence[Row]) -> list[Goal]:
    goals = []
    for question, (_, limit) in QUESTIONS.items():
        these = [row for row in rows if row["question"] == question]
        promise = f"{question}: at most {limit:g} times the plain forward"
        goals.append(every(promise, these, "ours / plain", lambda row: row["limit"]))
    return [*goals, _memory(rows)]


def _memory(rows: Sequence[Row]) -> Goal:
    promise = f"at {LENGTHS[-1]} at most {MEGABYTES:.0f} MB more than the plain forward, 8 heads"
    these = [r["extra MB"] for r in rows if r["length"] == LENGTHS[-1] and r["shape"] == "Llama"]
    kept = max(these) <= MEGABYTES if these else None
    return Goal(promise, kept, f"at most {max(these):.0f} MB" if these else "")


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 4))
    for at, shape in enumerate(SHAPES, start=1):
        axes = figure.add_subplot(1, len(SHAPES), at, title=shape, xlabel="length, tokens")
        for question in QUESTIONS:
            these = [r for r in rows if (r["shape"], r["question"]) == (shape, question)]
            lengths = [row["length"] for row in these]
            ratios = [row["ours / plain"]["median"] for row in these]
            axes.semilogx(lengths, ratios, "o-", label=question)
        axes.set_ylim(bottom=0)
    figure.axes[0].set_ylabel("CPU time, in plain forwards")
    figure.axes[0].legend(fontsize="x-small")
    return figure


STATISTICS = Benchmark(
    "statistics",
    "What do exact statistics of all heads cost beside the plain forward (heads of 64)?",
    ("cell",),
    measure,
    judge,
    draw,
)
