"""A causal sliding window beside other libraries' windows."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.libraries import Peer, compiled_flex, local_attention, longformer, made, note
from benchmarks.rounds import interleave, ratio
from benchmarks.window import PASSES, SIZE, ours, step

LENGTHS = (4096, 8192, 16384)
PEERS: dict[str, Peer] = {
    "flex": compiled_flex,
    "local-attention": local_attention,
    "longformer": longformer,
}
FASTER = {
    "forward": {"flex": 1.4, "local-attention": 4.5, "longformer": 4.5},
    "forward+backward": {"local-attention": 2.0, "longformer": 4.0},
}
"""How many times as long as ours each must take at the greatest length."""


def measure(plan: Plan) -> Iterator[Row]:
    lengths = (512,) if plan.effort == "quick" else LENGTHS
    for length in lengths:
        for name, training in PASSES.items():
            if f"{length} {name}" not in plan.done:
                # torch's FlexAttention has no gradient on the CPU.
                asked = {peer: PEERS[peer] for peer in FASTER[name]}
                rounds = plan.choose(quick=1, usual=5 if length < LENGTHS[-1] else 3)
                yield _cell(length, name, asked, rounds, training=training)


def _cell(length: int, name: str, asked: dict[str, Peer], rounds: int, *, training: bool) -> Row:
    ready = made(asked, length, SIZE)
    steps: dict[str, Callable[[], object]] = {
        peer: step(length, attend, training=training)
        for peer, attend in {"ours": ours, **ready}.items()
    }
    times = interleave(steps, rounds)
    row: Row = {"cell": f"{length} {name}", "length": length, "pass": name}
    row["ours ms"] = 1e3 * float(np.median(times["ours"]))
    for peer in ready:
        row[f"{peer} / ours"] = vars(ratio(times[peer], times["ours"]))
    return row | {"note": note(asked, ready)}


def judge(rows: Sequence[Row]) -> list[Goal]:
    last = {row["pass"]: row for row in rows if row["length"] == LENGTHS[-1]}
    goals = []
    for name, limits in FASTER.items():
        for peer, limit in limits.items():
            found = last.get(name, {}).get(f"{peer} / ours")
            promise = f"at {LENGTHS[-1]} {name} at least {limit} times as fast as {peer}"
            kept = None if found is None else found["low"] >= limit
            numbers = "" if found is None else f"at least {found['low']:.1f} times"
            goals.append(Goal(promise, kept, numbers))
    return goals


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for name, style in zip(PASSES, ("o-", "s--"), strict=True):
        these = [row for row in rows if row["pass"] == name]
        for peer in FASTER[name]:
            known = [row for row in these if row.get(f"{peer} / ours")]
            times = [row[f"{peer} / ours"]["median"] for row in known]
            lengths = [row["length"] for row in known]
            axes.loglog(lengths, times, style, label=f"{peer}, {name}")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("CPU time as a multiple of ours")
    axes.legend()
    return figure


NEIGHBOURS = Benchmark(
    "neighbours",
    f"What do other libraries take for a causal window of {SIZE} (8 heads of 64)?",
    ("cell",),
    measure,
    judge,
    draw,
)
