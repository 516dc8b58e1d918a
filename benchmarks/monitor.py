"""What `doctor.monitor` adds to a step of training at its default interval."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.rounds import interleave, ratio

INTERVAL, NEVER = 100, 10**9
SIZES = ((128, 4, 8, 64, 400), (256, 8, 4, 64, 300), (512, 8, 2, 64, 200))
"""d_model, heads, batch, length; and rounds, so that each takes a minute or two on one core."""
ENOUGH = 100
"""Rounds from which on a row can show so small a difference."""


class Shell(nn.Module):
    """A model around another, so that one set of weights is trained watched and unwatched."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def _steps(d_model: int, heads: int, batch: int, length: int) -> dict[str, Callable[[], object]]:
    """A step of training that nobody watches, one between two looks, and one with a look."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(batch, length, d_model)

    def step_of(interval: int | None) -> Callable[[], object]:
        shell = Shell(model)
        watched = None if interval is None else mh.doctor.monitor(shell, every=interval)

        def step() -> object:
            loss = (shell(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if watched is not None:
                watched.step(loss)
            optimizer.step()
            return loss

        return step

    return {"plain": step_of(None), "between": step_of(NEVER), "look": step_of(1)}


def measure(plan: Plan) -> Iterator[Row]:
    for *size, rounds in SIZES if plan.effort != "quick" else SIZES[:1]:
        cell = "d_model {}, {} heads, {} x {}".format(*size)
        if cell in plan.done:
            continue
        # The first step of a monitor is always a look, and belongs to the warmup.
        times = interleave(_steps(*size), plan.choose(quick=4, usual=rounds), warmups=3)
        interval = [
            ((INTERVAL - 1) * between + look) / INTERVAL
            for between, look in zip(times["between"], times["look"], strict=True)
        ]
        yield {
            "cell": cell,
            "rounds": len(interval),
            "between / plain": vars(ratio(times["between"], times["plain"])),
            "look / plain": vars(ratio(times["look"], times["plain"])),
            "watched / plain": vars(ratio(interval, times["plain"])),
        }


def judge(rows: Sequence[Row]) -> list[Goal]:
    rows = [row for row in rows if row.get("rounds", 0) >= ENOUGH]
    promise = f"a look each {INTERVAL} steps adds at most 3 % to the time of training"
    return [every(promise, rows, "watched / plain", lambda row: 1.03)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    found = [row["watched / plain"] for row in rows]
    medians = np.array([each["median"] for each in found])
    ends = np.array([[each["low"], each["high"]] for each in found]).reshape(-1, 2).T
    places = np.arange(len(rows))
    axes.errorbar(medians, places, xerr=np.abs(ends - medians), fmt="o", capsize=4)
    axes.set_yticks(places, [row["cell"] for row in rows])
    axes.axvline(1.03, linestyle="--", color="black")
    axes.set_xlabel("CPU time of training, watched / plain, with its 95 % interval")
    return figure


MONITOR = Benchmark(
    name="monitor",
    question="What does watching a training run cost?",
    key=("cell",),
    measure=measure,
    judge=judge,
    draw=draw,
)
