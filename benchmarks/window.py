"""A causal sliding window beside torch's own function with the same mask written out."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.memory import peak_bytes
from benchmarks.rounds import interleave, ratio
from manyheads.functional.call import prepare
from manyheads.functional.choose import choose
from manyheads.laws.calls import USUAL

SIZE, HEADS, HEAD_DIM = 256, 8, 64
LENGTHS = (4096, 8192, 16384, 32768)
DENSE_UP_TO = 16384  # A mask written out takes 4 GB in fp32 at twice that.
EXPONENT, FASTER, MEBIBYTES = 1.1, 25.0, 250.0
PASSES = {"forward": False, "forward+backward": True}


def measure(plan: Plan) -> Iterator[Row]:
    lengths = LENGTHS[:1] if plan.effort == "quick" else LENGTHS
    rounds = plan.choose(quick=1, usual=5)
    for name, training in PASSES.items():
        if all(f"{length} {name}" in plan.done for length in lengths):
            continue
        # Lengths in turns too: how time grows must not hang on when each was measured.
        steps = {str(length): step(length, ours, training=training) for length in lengths}
        times = interleave(steps, rounds)
        for length in lengths:
            yield {
                "cell": f"{length} {name}",
                "length": length,
                "pass": name,
                "backend": chosen(length, _mask()),
                "ours MiB": peak_bytes(steps[str(length)]) / 2**20,
                "ours ms": 1e3 * float(np.median(times[str(length)])),
                **_beside_dense(length, steps[str(length)], rounds, training=training),
            }


def _beside_dense(
    length: int, ours: Callable[[], object], rounds: int, *, training: bool
) -> dict[str, object]:
    # Torch's backward with a dense mask takes minutes at 16k, and no goal asks for it.
    if length > (DENSE_UP_TO // 4 if training else DENSE_UP_TO):
        return {}
    seen = _mask().dense(length)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, seen)

    dense = step(length, attend, training=training)
    times = interleave({"ours": ours, "dense": dense}, min(rounds, 3) if length > 8192 else rounds)
    return {
        "dense ms": 1e3 * float(np.median(times["dense"])),
        "dense / ours": vars(ratio(times["dense"], times["ours"])),
    }


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Our causal window of `SIZE`."""
    return mh.attention(q, k, v, _mask())


def _mask() -> mh.Mask:
    return mh.Causal() & mh.Window(SIZE)


def chosen(length: int, mask: mh.Mask) -> str:
    """The backend that does a call of this length."""
    q = torch.empty(1, HEADS, length, HEAD_DIM, device="meta")
    # `explain` would work out the memory of every other backend too.
    return choose(prepare(**(USUAL | {"q": q, "k": q, "v": q, "mask": mask})), "auto").name


def step(length: int, attend: Callable[..., Tensor], *, training: bool) -> Callable[[], object]:
    """One call on random tensors, forward alone or with the gradients of all three."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM) for _ in range(3))
    if not training:
        return lambda: attend(q, k, v)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    weight = torch.randn(1, HEADS, length, HEAD_DIM)
    return lambda: torch.autograd.grad(attend(*leaves), leaves, weight)


def judge(rows: Sequence[Row]) -> list[Goal]:
    return [_linear_time(rows), _faster(rows), _memory(rows)]


def exponent(lengths: Sequence[float], times: Sequence[float]) -> float:
    """The power of the length with which times grow, by least squares over logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(times), 1)[0])


def _linear_time(rows: Sequence[Row]) -> Goal:
    promise = f"time grows with the length to the power {EXPONENT} at most, 4k to 32k"
    found = {}
    for name in PASSES:
        these = [row for row in rows if row["pass"] == name]
        if len(these) > 1:
            lengths, times = ([row[key] for row in these] for key in ("length", "ours ms"))
            found[name] = exponent(lengths, times)
    numbers = ", ".join(f"{name} {power:.2f}" for name, power in found.items())
    return Goal(promise, all(p <= EXPONENT for p in found.values()) if found else None, numbers)


def _faster(rows: Sequence[Row]) -> Goal:
    promise = f"at {DENSE_UP_TO} forward at least {FASTER:.0f} times as fast as a dense mask"
    for row in rows:
        if row["length"] == DENSE_UP_TO and "dense / ours" in row:
            low = row["dense / ours"]["low"]
            return Goal(promise, low >= FASTER, f"at least {low:.1f} times")
    return Goal(promise, None, "")


def _memory(rows: Sequence[Row]) -> Goal:
    promise = f"at 32768 forward peaks at {MEBIBYTES:.0f} MiB at most, output included"
    for row in rows:
        if row["length"] == LENGTHS[-1] and row["pass"] == "forward":
            return Goal(promise, row["ours MiB"] <= MEBIBYTES, f"{row['ours MiB']:.0f} MiB")
    return Goal(promise, None, "")


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot()
    for name in PASSES:
        for contender, style in (("ours", "o-"), ("dense", "s--")):
            these = [r for r in rows if r["pass"] == name and r.get(f"{contender} ms")]
            times = [row[f"{contender} ms"] for row in these]
            lengths = [row["length"] for row in these]
            axes.loglog(lengths, times, style, label=f"{contender}, {name}")
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("CPU time of a call, ms")
    axes.legend()
    return figure


WINDOW = Benchmark(
    "window",
    f"What does a causal window of {SIZE} cost as sequences grow (8 heads of 64)?",
    ("cell",),
    measure,
    judge,
    draw,
)
