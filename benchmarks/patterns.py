"""Sparse patterns beside torch's own function with the same mask written out."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave, ratio
from benchmarks.window import chosen, step

LENGTH = 16384


FASTER = 2.0


def patterns(length: int) -> dict[str, mh.Mask]:
    """What is timed, by a name for each."""
    local = mh.Window(128) | mh.Global(0)
    bigbird = local | mh.RandomBlocks(3, block=64, length=length)
    return {
        "longformer": local,
        "bigbird": bigbird,
        "causal bigbird": mh.Causal() & bigbird,
        "dyadic": mh.Causal() & mh.Dyadic(),
    }


def measure(plan: Plan) -> Iterator[Row]:
    length = 512 if plan.effort == "quick" else LENGTH
    masks = patterns(length)
    # Written out, whatever a mask says takes torch as long: one stands for all.
    seen = masks["bigbird"].dense(length)

    def ours(mask: mh.Mask) -> Callable[[], object]:
        return step(length, lambda q, k, v: mh.attention(q, k, v, mask), training=False)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, seen)

    steps = {name: ours(mask) for name, mask in masks.items()}
    steps["dense"] = step(length, dense, training=False)
    times = interleave(steps, plan.choose(quick=1, usual=3))
    for name, mask in masks.items():
        yield {
            "pattern": name,
            "length": length,
            "backend": chosen(length, mask),
            "ours ms": 1e3 * float(np.median(times[name])),
            "dense ms": 1e3 * float(np.median(times["dense"])),
            "dense / ours": vars(ratio(times["dense"], times[name])),
        }


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = f"at {LENGTH} every pattern at least {FASTER:.0f} times as fast as a dense mask"
    long = [row for row in rows if row["length"] == LENGTH]
    if not long:
        return [Goal(promise, None, "")]
    worst = min(long, key=lambda row: row["dense / ours"]["low"])
    low = worst["dense / ours"]["low"]
    return [Goal(promise, low >= FASTER, f"at least {low:.1f} times, for {worst['pattern']}")]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3))
    axes = figure.add_subplot()
    names = [row["pattern"] for row in rows]
    axes.barh(names, [row["dense / ours"]["median"] for row in rows])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("CPU time of a dense mask as a multiple of ours")
    return figure


PATTERNS = Benchmark(
    "patterns",
    f"What do sparse patterns save at {LENGTH} tokens (8 heads of 64)?",
    ("pattern",),
    measure,
    judge,
    draw,
)
