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
        spent = _microseconds([theirs, ours], rounds)
        yield {
            "call": name,
            "bare us, least": spent[0].min(),
            "ours us, least": spent[1].min(),
            "added us, least": spent[1].min() - spent[0].min(),
            "added us, median": float(np.median(spent[1] - spent[0])),
        }


def _microseconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[np.ndarray]:
    """Wall time of a call in each round: a caller waits for it, whatever it is spent on."""
    spent: list[list[float]] = [[] for _ in calls]
    gc.disable()
    try:
        for turn in range(-2, rounds):
            for call, times in zip(calls, spent, strict=True):
                start = time.perf_counter()
                for _ in range(REPEATS):
                    call()
                if turn >= 0:
                    times.append((time.perf_counter() - start) / REPEATS * 1e6)
    finally:
        gc.enable()
    return [np.asarray(times) for times in spent]


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = f"a plain call adds at most {LIMIT:.0f} microseconds to the bare function"
    plain = [row for row in rows if row["call"] == "no mask"]
    if not plain:
        return [Goal(promise, None, "")]
    least, median = plain[0]["added us, least"], plain[0]["added us, median"]
    return [Goal(promise, least <= LIMIT, f"{least:.1f} at least, {median:.1f} in the median")]


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
