"""Padded and packed batches, beside the same call with its padding computed."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave, ratio
from benchmarks.window import HEAD_DIM, HEADS, PASSES

SIZES = ((8, 1024), (4, 2048))
FASTER = 1.7


def masks(batch: int, length: int) -> dict[str, mh.Mask]:
    """Half of all tokens are padding; or each row holds four documents."""
    lengths = torch.linspace(0.25, 0.75, batch).mul(length).long()
    ids = (torch.arange(length) * 4 // length).expand(batch, -1)
    return {
        "Padding": mh.Padding(lengths=lengths),
        "Causal & Padding": mh.Causal() & mh.Padding(lengths=lengths),
        "Documents": mh.Documents(ids),
        "Causal & Documents": mh.Causal() & mh.Documents(ids),
    }


def measure(plan: Plan) -> Iterator[Row]:
    for batch, length in ((2, 256),) if plan.effort == "quick" else SIZES:
        for mask_name, mask in masks(batch, length).items():
            for pass_name, training in PASSES.items():
                cell = f"({batch}, {length}) {mask_name} {pass_name}"
                if cell not in plan.done:
                    steps = contenders(batch, length, mask, training=training)
                    times = interleave(steps, plan.choose(quick=1, usual=5))
                    yield {
                        "cell": cell,
                        "ours ms": 1e3 * float(np.median(times["ours"])),
                        "padded ms": 1e3 * float(np.median(times["padded"])),
                        "padded / ours": vars(ratio(times["padded"], times["ours"])),
                    }


def contenders(
    batch: int, length: int, mask: mh.Mask, *, training: bool
) -> dict[str, Callable[[], object]]:
    """One step of ours, and of torch's function with the mask that people hand it."""
    torch.manual_seed(0)
    shape = batch, HEADS, length, HEAD_DIM
    q, k, v = (torch.randn(shape).requires_grad_(training) for _ in range(3))
    weight = torch.randn(shape)
    keys_only = isinstance(mask, mh.Padding)
    seen = mask.dense(1 if keys_only else length, length, batch=batch)

    def step(attend: Callable[[], Tensor]) -> Callable[[], object]:
        if not training:
            return attend
        return lambda: torch.autograd.grad(attend(), (q, k, v), weight)

    return {
        "ours": step(lambda: mh.attention(q, k, v, mask)),
        "padded": step(lambda: F.scaled_dot_product_attention(q, k, v, seen)),
    }


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = f"at least {FASTER} times as fast as the padded call (lower end)"
    if not rows:
        return [Goal(promise, None, "")]
    kept = [row for row in rows if row["padded / ours"]["low"] >= FASTER]
    worst = min(rows, key=lambda row: row["padded / ours"]["low"])
    low = worst["padded / ours"]["low"]
    numbers = f"{len(kept)} of {len(rows)} cells; least {low:.2f} at {worst['cell']}"
    return [Goal(promise, len(kept) == len(rows), numbers)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 1 + 0.3 * len(rows)))
    axes = figure.add_subplot()
    axes.barh([row["cell"] for row in rows], [row["padded / ours"]["median"] for row in rows])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.axvline(FASTER, color="black", linewidth=0.8, linestyle="--")
    axes.invert_yaxis()
    axes.set_xlabel("CPU time of the padded call as a multiple of ours; dashed: the goal")
    return figure


PACKED = Benchmark(
    "packed",
    "What is saved by leaving out half of a batch that is padding, or other documents?",
    ("cell",),
    measure,
    judge,
    draw,
)
