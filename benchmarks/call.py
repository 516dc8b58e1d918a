"""What a call of `attention` costs beyond torch's own function, where there is nothing to do."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row

REPEATS = 50
LIMIT = 20.0


def measure(plan: Plan) -> Iterator[Row]:
    q = k = v = torch.randn(1, 2, 4, 8)
    padding = mh.Padding(torch.ones(1, 4, dtype=torch.bool))
    keep = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    both = mh.Causal() & padding
    bare: Callable[[], object] = lambda: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "no mask": (bare, lambda: mh.attention(q, k, v)),
        "Causal()": (
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            lambda: mh.attention(q, k, v, mh.Causal()),
        ),
        "Padding": (
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=keep),
            lambda: mh.attention(q, k, v, padding),
        ),
        "Causal() & Padding": (
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=keep & keep.mT),
            lambda: mh.attention(q, k, v, both),
        ),
    }
    rounds = plan.choose(quick=20, usual=300)
    for name, (theirs, ours) in cases.items():
        wall, cpu = _microseconds([theirs, ours], rounds)
        least, added = wall.min(axis=1), np.median(wall[1] - wall[0])
        yield {
            "call": name,
            "bare us, least": float(least[0]),
            "ours us, least": float(least[1]),
            "added us, least": float(least[1] - least[0]),
            "added us, median": float(added),
            "added CPU us, median": float(np.median(cpu[1] - cpu[0])),
        }


def _microseconds(calls: Sequence[Callable[[], object]], rounds: int) -> tuple[np.ndarray, ...]:
    """Wall and CPU time of each call in each round, (calls, rounds).

    Wall time is what a caller waits for; on a busy machine its least and the CPU's median tell
    what the call itself takes.
    """
    wall, cpu = np.zeros((2, len(calls), rounds))
    gc.disable()
    try:
        for turn in range(-2, rounds):
            for index, call in enumerate(calls):
                start, begun = time.perf_counter(), time.process_time()
                for _ in range(REPEATS):
                    call()
                if turn >= 0:
                    cpu[index, turn] = time.process_time() - begun
                    wall[index, turn] = time.perf_counter() - start
    finally:
        gc.enable()
    return wall * 1e6 / REPEATS, cpu * 1e6 / REPEATS


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = f"a plain call adds at most {LIMIT:.0f} microseconds to the bare function"
    plain = [row for row in rows if row["call"] == "no mask"]
    if not plain:
        return [Goal(promise, None, "")]
    least, cpu = plain[0]["added us, least"], plain[0]["added CPU us, median"]
    numbers = f"{least:.1f} of wall time at least, {cpu:.1f} of CPU time in the median"
    return [Goal(promise, least <= LIMIT and cpu <= LIMIT, numbers)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 3))
    axes = figure.add_subplot()
    names = [row["call"] for row in rows]
    axes.barh(names, [row["bare us, least"] for row in rows], label="scaled_dot_product_attention")
    axes.barh(
        names,
        [row["added us, least"] for row in rows],
        left=[row["bare us, least"] for row in rows],
        label="added by mh.attention",
    )
    axes.invert_yaxis()
    axes.set_xlabel("microseconds a call on tiny tensors, least of many")
    axes.legend()
    return figure


CALL = Benchmark(
    "call",
    "What does a call of mh.attention cost beyond the bare torch function, on tiny tensors?",
    ("call",),
    measure,
    judge,
    draw,
)
