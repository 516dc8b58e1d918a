"""What it costs to know what heads do: exact statistics beside the plain forward of the call."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.memory import peak_bytes
from benchmarks.rounds import interleave, ratio
from manyheads.functional import Statistics

SHAPES = {"Llama": (8, 2), "BERT": (12, 12)}
HEAD_DIM = 64
LENGTHS = (512, 2048, 8192, 32768)
EAGER_UP_TO = 2048  # All weights take 10 GB at four times that.
MEBIBYTES = 150.0


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
    lengths = LENGTHS[:1] if plan.effort == "quick" else LENGTHS
    for shape, (heads, kv_heads) in SHAPES.items():
        mask = mh.Causal() if shape == "Llama" else None
        for length in lengths:
            torch.manual_seed(0)
            q = torch.randn(1, heads, length, HEAD_DIM)
            k, v = torch.randn(2, 1, kv_heads, length, HEAD_DIM)

            def plain(q=q, k=k, v=v, mask=mask) -> object:
                return mh.attention(q, k, v, mask)

            def eager(q=q, k=k, v=v, mask=mask) -> object:
                return mh.attention_with_weights(q, k, v, mask)

            for question, (ask, limit) in QUESTIONS.items():
                cell = f"{shape} {length} {question}"
                if cell in plan.done:
                    continue

                def asked(ask=ask, q=q, k=k, v=v, mask=mask) -> object:
                    return ask(mh.statistics(q, k, v, mask))

                steps = {"plain": plain, "ours": asked}
                if length <= EAGER_UP_TO:
                    steps["written out"] = eager
                rounds = plan.choose(quick=1, usual=3 if length > 8192 else 7)
                times = interleave(steps, rounds, warmups=int(length <= 8192))
                yield {
                    "cell": cell,
                    "question": question,
                    "shape": shape,
                    "length": length,
                    "limit": limit,
                    "ours ms": 1e3 * float(np.median(times["ours"])),
                    "ours / plain": vars(ratio(times["ours"], times["plain"])),
                    "extra MiB": (peak_bytes(asked) - peak_bytes(plain)) / 2**20,
                    **(
                        {"written out / plain": vars(ratio(times["written out"], times["plain"]))}
                        if "written out" in steps
                        else {}
                    ),
                }


def judge(rows: Sequence[Row]) -> list[Goal]:
    goals = []
    for question, (_, limit) in QUESTIONS.items():
        these = [row for row in rows if row["question"] == question]
        promise = f"{question}: at most {limit:g} times the plain forward"
        goals.append(every(promise, these, "ours / plain", lambda row: row["limit"]))
    return [*goals, _memory(rows)]


def _memory(rows: Sequence[Row]) -> Goal:
    promise = f"at 32768 at most {MEBIBYTES:.0f} MiB more than the plain forward, 8 heads"
    these = [r["extra MiB"] for r in rows if r["length"] == LENGTHS[-1] and r["shape"] == "Llama"]
    kept = max(these) <= MEBIBYTES if these else None
    return Goal(promise, kept, f"{max(these):.0f} MiB" if these else "")


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
