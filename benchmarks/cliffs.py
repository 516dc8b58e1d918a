"""Calls that send torch to whole matrices of scores, or to copies of keys, and what ours take."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.memory import peak_bytes
from benchmarks.rounds import interleave, ratio

LENGTH, HEADS, HEAD_DIM = 2048, 8, 64
QUERY_HEADS, KV_HEADS = 32, 8
KEYS, BATCHES = (512, 1024, 2048, 4096), (1, 8)
STEPS = 20  # of decoding, timed together, since one takes a fraction of a millisecond
PASSES = {"forward": False, "forward+backward": True}
MEMORY, TIMES = 0.25, {"enable_gqa": 1.2, "repeat_interleave": 5.0}


@dataclass(frozen=True)
class Cliff:
    """A call that torch's function for the CPU does by its slow path.

    Args:
        name: What it is called.
        head_dim: Width of queries and keys.
        value_dim: Width of values.
        dropout: The share of weights that is dropped.
        learns: Whether there is a trainable bias, of all heads and pairs.
    """

    name: str
    head_dim: int = HEAD_DIM
    value_dim: int = HEAD_DIM
    dropout: float = 0.0
    learns: bool = False


CLIFFS = (
    Cliff("dropout 0.1", dropout=0.1),
    Cliff("trainable bias", learns=True),
    Cliff("head_dim 33", head_dim=33, value_dim=33),
    Cliff("head_dim 80", head_dim=80, value_dim=80),
    Cliff("value_dim 32", value_dim=32),
    Cliff("value_dim 128", value_dim=128),
)
PROMISED = ("dropout 0.1", "trainable bias")


def measure(plan: Plan) -> Iterator[Row]:
    quick = plan.effort == "quick"
    for cliff in CLIFFS:
        for name, training in PASSES.items():
            cell = f"{cliff.name} {name}"
            if cell not in plan.done:
                yield {"cell": cell, "kind": cliff.name, **_beside_torch(cliff, plan, training)}
    for batch in BATCHES:
        for kv_len in KEYS[:1] if quick else KEYS:
            cell = f"grouped decoding, batch {batch}, {kv_len} keys"
            if cell not in plan.done:
                yield {"cell": cell, "kind": "grouped decoding", **_decoding(batch, kv_len, plan)}


def _beside_torch(cliff: Cliff, plan: Plan, training: bool) -> dict[str, Any]:
    length = 512 if plan.effort == "quick" else LENGTH
    torch.manual_seed(0)
    q, k = (torch.randn(1, HEADS, length, cliff.head_dim) for _ in range(2))
    v = torch.randn(1, HEADS, length, cliff.value_dim)
    bias = torch.randn(1, HEADS, length, length) if cliff.learns else None
    leaves = [x.requires_grad_(training or x is bias) for x in (q, k, v, bias) if x is not None]
    asked = {"bias": bias, "dropout": cliff.dropout}

    def ours() -> Tensor:
        return mh.attention(q, k, v, **asked)

    def theirs() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, bias, cliff.dropout)

    steps = {"ours": _step(ours, leaves, training), "torch": _step(theirs, leaves, training)}
    times = interleave(steps, plan.choose(quick=1, usual=7))
    peaks = {name: peak_bytes(step) / 2**20 for name, step in steps.items()}
    # What any path must take: the gradient of a bias of all pairs alone is 128 MiB.
    asked_for = sum(x.nbytes for x in leaves) / 2**20 if training else 0.0
    return {
        "backend": mh.explain(q, k, v, **asked, verbose=False).chosen,
        **{f"{name} ms": 1e3 * float(np.median(times[name])) for name in steps},
        "ours / torch": vars(ratio(times["ours"], times["torch"])),
        **{f"{name} MiB": peak for name, peak in peaks.items()},
        "gradients MiB": asked_for,
        "memory": peaks["ours"] / peaks["torch"],
    }


def _step(
    attend: Callable[[], Tensor], leaves: list[Tensor], training: bool
) -> Callable[[], object]:
    if not training:
        return attend
    return lambda: torch.autograd.grad(attend().sum(), leaves)


def _decoding(batch: int, kv_len: int, plan: Plan) -> dict[str, Any]:
    torch.manual_seed(0)
    q = torch.randn(batch, QUERY_HEADS, 1, HEAD_DIM)
    k, v = torch.randn(2, batch, KV_HEADS, kv_len, HEAD_DIM).unbind()
    fused, group = F.scaled_dot_product_attention, QUERY_HEADS // KV_HEADS

    def copied() -> Tensor:
        return fused(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))

    steps: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: mh.attention(q, k, v, mh.Causal()),
        "enable_gqa": lambda: fused(q, k, v, enable_gqa=True),
        "repeat_interleave": copied,
    }
    many = {name: _repeated(step) for name, step in steps.items()}
    times = interleave(many, plan.choose(quick=2, usual=15))
    return {
        "backend": mh.explain(q, k, v, mh.Causal(), verbose=False).chosen,
        **{f"{name} ms": 1e3 * float(np.median(times[name])) / STEPS for name in steps},
        **{f"ours / {name}": vars(ratio(times["ours"], times[name])) for name in TIMES},
    }


def _repeated(step: Callable[[], object]) -> Callable[[], object]:
    return lambda: [step() for _ in range(STEPS)]


def judge(rows: Sequence[Row]) -> list[Goal]:
    promised = [row for row in rows if row["kind"] in PROMISED]
    promise = f"{' and '.join(PROMISED)}: faster than torch's own path"
    goals = [every(promise, promised, "ours / torch", lambda row: 1.0), _memory(promised)]
    for name, times in TIMES.items():
        promise = f"grouped decoding at least {times:g} times as fast as with {name}"
        goals.append(every(promise, rows, f"ours / {name}", lambda row, times=times: 1 / times))
    return goals


def _memory(rows: Sequence[Row]) -> Goal:
    promise = f"{' and '.join(PROMISED)}: at most {MEMORY:g} of its peak memory"
    if not rows:
        return Goal(promise, None, "")
    worst = max(rows, key=lambda row: row["memory"])
    kept = sum(row["memory"] <= MEMORY for row in rows)
    numbers = f"{kept} of {len(rows)} cells; worst {worst['memory']:.2f} at {worst['cell']}"
    return Goal(promise, kept == len(rows), numbers)


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 0.35 * len(rows) + 1.5))
    axes = figure.add_subplot()
    for at, row in enumerate(rows):
        for name, mark in (("torch", "o"), ("enable_gqa", "s"), ("repeat_interleave", "^")):
            found = row.get(f"ours / {name}")
            if found is not None:
                axes.plot([found["low"], found["high"]], [at, at], color="grey")
                axes.plot(found["median"], at, mark, color="black")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["cell"] for row in rows])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="CPU time, ours / torch (o), enable_gqa (s), copied keys (^)")
    return figure


CLIFF = Benchmark(
    "cliffs",
    "What do calls cost that send torch's function for the CPU to its slow path?",
    ("cell",),
    measure,
    judge,
    draw,
)
