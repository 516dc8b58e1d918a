"""Writing text with a cache and without."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave, ratio


def measure(plan: Plan) -> Iterator[Row]:
    torch.manual_seed(0)
    # No target ends early: its end is a token that the output layer never favours.
    config = mh.TransformerConfig(64, 64, d_model=128, num_heads=8, d_hidden=256)
    model = mh.Transformer(config).eval()
    with torch.no_grad():
        model.output.weight[config.eos_id] = 0.0
    lengths = {"quick": (8,), "usual": (16, 64, 256), "full": (16, 64, 256, 512)}[plan.effort]
    for batch in (1, 8):
        source = torch.randint(3, 64, (batch, 32))
        for length in lengths:
            times = interleave(
                {
                    name: lambda cached=name == "cached", length=length, source=source: (
                        model.generate(source, max_new_tokens=length, cached=cached)
                    )
                    for name in ("cached", "uncached")
                },
                plan.choose(quick=3, usual=7),
            )
            tokens = batch * model.generate(source, max_new_tokens=length).shape[1]
            yield {
                "batch": batch,
                "new tokens": length,
                "cached tokens/s": tokens / float(np.median(times["cached"])),
                "uncached tokens/s": tokens / float(np.median(times["uncached"])),
                "cached / uncached": vars(ratio(times["cached"], times["uncached"])),
            }


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = "a cache pays from 64 new tokens on (upper end below 1)"
    long = [row for row in rows if row["new tokens"] >= 64]
    if not long:
        return [Goal(promise, None, "")]
    worst = max(long, key=lambda row: row["cached / uncached"]["high"])
    value = worst["cached / uncached"]
    numbers = f"worst {value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})"
    where = f" at batch {worst['batch']}, {worst['new tokens']} tokens"
    return [Goal(promise, value["high"] < 1, numbers + where)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    for batch in sorted({row["batch"] for row in rows}):
        own = [row for row in rows if row["batch"] == batch]
        for name in ("cached", "uncached"):
            speeds = [row[f"{name} tokens/s"] for row in own]
            axes.plot([row["new tokens"] for row in own], speeds, "o-", label=f"{name}, {batch}")
    axes.set(xscale="log", yscale="log", xlabel="new tokens", ylabel="tokens per CPU second")
    axes.legend(title="batch")
    return figure


DECODE = Benchmark(
    "decode",
    "How much faster does the Transformer write with a cache?",
    ("batch", "new tokens"),
    measure,
    judge,
    draw,
)
