"""What `doctor.monitor` adds to a step of training at its default interval."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.rounds import interleave, ratio

INTERVAL = 100
SIZES = ((128, 4, 8, 64), (256, 8, 8, 128), (512, 8, 4, 256))
"""d_model, heads, batch, length."""


def _loop(size: tuple[int, int, int, int], steps: int, watched: bool) -> Callable[[], object]:
    d_model, heads, batch, length = size
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(batch, length, d_model)

    def run() -> object:
        watch = mh.doctor.monitor(model, every=INTERVAL) if watched else None
        for _ in range(steps):
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if watch is not None:
                watch.step(loss)
            optimizer.step()
        if watch is not None:
            watch.close()
        return loss

    return run


def measure(plan: Plan) -> Iterator[Row]:
    # The first step is a look too, so one interval has two of them: a little more than usual.
    steps = INTERVAL if plan.effort != "quick" else 4
    for size in SIZES if plan.effort != "quick" else SIZES[:1]:
        cell = "d_model {}, {} heads, {} x {}".format(*size)
        if cell in plan.done:
            continue
        contestants = {
            name: _loop(size, steps, watched)
            for name, watched in (("plain", False), ("watched", True))
        }
        times = interleave(contestants, rounds=plan.choose(quick=2, usual=7))
        yield {
            "cell": cell,
            "steps": steps,
            "watched / plain": vars(ratio(times["watched"], times["plain"])),
        }


def judge(rows: Sequence[Row]) -> list[Goal]:
    rows = [row for row in rows if row["steps"] >= INTERVAL]
    promise = f"a look each {INTERVAL} steps adds at most 3 % to the time of training"
    return [every(promise, rows, "watched / plain", lambda row: 1.03)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    medians = [row["watched / plain"]["median"] for row in rows]
    axes.barh(np.arange(len(rows)), medians)
    axes.set_yticks(np.arange(len(rows)), [row["cell"] for row in rows])
    axes.axvline(1.03, linestyle="--", color="black")
    axes.set_xlabel("time of training, watched / plain")
    return figure


MONITOR = Benchmark(
    name="monitor",
    question="What does watching a training run cost?",
    key=("cell",),
    measure=measure,
    judge=judge,
    draw=draw,
)
