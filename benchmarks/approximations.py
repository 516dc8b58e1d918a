"""Attention that approximates, beside exact attention and beside other libraries."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.libraries import (
    Attend,
    Peer,
    made,
    note,
    performer,
    performer_causal,
    performer_sums,
    reformer,
)
from benchmarks.rounds import Contender, interleave, ratio
from benchmarks.window import HEAD_DIM, HEADS

FEATURES, BUCKET = 256, 64
CAUSAL_LENGTHS, LENGTHS = (2048, 8192), (1024, 2048, 4096, 8192, 16384)
FASTER, SHARE = 30.0, 0.10
"""How many times as fast as performer-pytorch at 2k, and which share of exact attention at 8k."""

PEERS: dict[str, Peer] = {"performer-pytorch": performer, "reformer-pytorch": reformer}
CAUSAL_PEERS: dict[str, Peer] = {
    "performer-pytorch": performer_causal,
    "its sums": performer_sums,
}
RIVALS = {"performer": "performer-pytorch", "lsh": "reformer-pytorch"}


def measure(plan: Plan) -> Iterator[Row]:
    quick = plan.effort == "quick"
    for length in (512,) if quick else CAUSAL_LENGTHS:
        if f"{length} causal" not in plan.done:
            yield _causal(length, plan)
    for length in (512,) if quick else LENGTHS:
        if f"{length} full" not in plan.done:
            yield _full(length, plan)


def _causal(length: int, plan: Plan) -> Row:
    q, k, v = _tensors(length)
    # Beyond the shortest, performer-pytorch takes minutes and the memory of a large machine.
    asked = CAUSAL_PEERS if length <= CAUSAL_LENGTHS[0] else {}
    ready = made(asked, length, FEATURES)
    seen = mh.Causal().dense(length)
    steps: dict[str, Contender] = {
        "linear": lambda: mh.linear_attention(q, k, v, mh.Causal()),
        "exact": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "dense": lambda: F.scaled_dot_product_attention(q, k, v, seen),
        **{peer: partial(attend, q, k, v) for peer, attend in ready.items()},
    }
    times = interleave(steps, plan.choose(quick=1, usual=5))
    row: Row = {"cell": f"{length} causal", "length": length} | _milliseconds(times)
    for exact in ("exact", "dense"):
        row[f"linear / {exact}"] = vars(ratio(times["linear"], times[exact]))
    for peer in ready:
        row[f"{peer} / linear"] = vars(ratio(times[peer], times["linear"]))
    return row | {"note": note(asked, ready)}


def _full(length: int, plan: Plan) -> Row:
    q, _, v = _tensors(length)
    q = q / 4  # norms at which random features are of use
    features = mh.RandomFeatures(HEAD_DIM, FEATURES)
    peers: dict[str, Attend] = {}
    for name, size in (("performer-pytorch", FEATURES), ("reformer-pytorch", BUCKET)):
        peers |= made({name: PEERS[name]}, length, size)
    steps: dict[str, Contender] = {
        "exact": lambda: F.scaled_dot_product_attention(q, q, v),
        "performer": lambda: mh.performer_attention(q, q, v, features=features),
        "lsh": lambda: mh.lsh_attention(q, q, v, bucket_size=BUCKET, rounds=4),
        **{peer: partial(attend, q, q, v) for peer, attend in peers.items()},
    }
    times = interleave(steps, plan.choose(quick=1, usual=3))
    row: Row = {"cell": f"{length} full", "length": length} | _milliseconds(times)
    for name in [name for name in steps if name != "exact"]:
        row[f"{name} / exact"] = vars(ratio(times[name], times["exact"]))
    return row | {"note": note(PEERS, peers)}


def _tensors(length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, HEAD_DIM)
    return q, k, v


def _milliseconds(times: dict[str, list[float]]) -> Row:
    return {f"{name} ms": 1e3 * float(np.median(times[name])) for name in times}


def break_even(rows: Sequence[Row], name: str) -> float | None:
    """From which length on a contender is faster than exact attention, between those measured."""
    known = sorted((row["length"], row[f"{name} / exact"]["median"]) for row in rows)
    slower = [place for place, (_, share) in enumerate(known) if share >= 1]
    if not slower:
        return float(known[0][0])
    if slower[-1] == len(known) - 1:
        return None
    # Times are near powers of the length, so logarithms are near lines.
    (before, high), (after, low) = known[slower[-1]], known[slower[-1] + 1]
    part = math.log(high) / (math.log(high) - math.log(low))
    return float(before * (after / before) ** part)


def judge(rows: Sequence[Row]) -> list[Goal]:
    return [_beside_performer(rows), _beside_exact(rows), *_break_evens(rows)]


def _beside_performer(rows: Sequence[Row]) -> Goal:
    length, key = CAUSAL_LENGTHS[0], "performer-pytorch / linear"
    promise = f"causal, at {length} at least {FASTER:.0f} times as fast as performer-pytorch"
    for row in rows:
        if row["cell"] == f"{length} causal" and row.get(key):
            return Goal(promise, row[key]["low"] >= FASTER, f"at least {row[key]['low']:.1f} times")
    return Goal(promise, None, "")


def _beside_exact(rows: Sequence[Row]) -> Goal:
    length = CAUSAL_LENGTHS[1]
    promise = f"causal, at {length} at most {SHARE} of the time of exact attention by a dense mask"
    for row in rows:
        if row["cell"] == f"{length} causal":
            high = row["linear / dense"]["high"]
            return Goal(promise, high <= SHARE, f"at most {high:.3f}")
    return Goal(promise, None, "")


def _break_evens(rows: Sequence[Row]) -> Iterator[Goal]:
    for ours, theirs in RIVALS.items():
        promise = f"{ours} pays at a shorter length than {theirs}"
        known = [row for row in rows if row.get(f"{theirs} / exact")]
        if not known:
            yield Goal(promise, None, "")
            continue
        lengths = {name: break_even(known, name) for name in (ours, theirs)}
        far = known[-1]["length"]
        told = [
            f"{name} from {f'{length:.0f} on' if length else f'beyond {far}'}"
            for name, length in lengths.items()
        ]
        reached = any(lengths.values())
        kept = (lengths[ours] or math.inf) < (lengths[theirs] or math.inf)
        yield Goal(promise, kept if reached else None, ", ".join(told))


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    full = [row for row in rows if row["cell"].endswith("full")]
    styles = {"performer": "o-", "lsh": "s-", "performer-pytorch": "o--", "reformer-pytorch": "s--"}
    for name, style in styles.items():
        known = [row for row in full if row.get(f"{name} / exact")]
        shares = [row[f"{name} / exact"]["median"] for row in known]
        axes.loglog([row["length"] for row in known], shares, style, label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("CPU time as a share of exact attention")
    axes.legend()
    return figure


APPROXIMATIONS = Benchmark(
    "approximations",
    "From which length on does attention that approximates pay (8 heads of 64)?",
    ("cell",),
    measure,
    judge,
    draw,
)
