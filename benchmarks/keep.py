"""What it costs to keep a text as it grows: a window that stays flat, and fewer bits."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave
from benchmarks.window import exponent
from manyheads.cache import Cache

WINDOW, CHUNK, STEPS = 512, 512, 16
LENGTHS = (2048, 4096, 8192, 16384, 32768)
FLAT = 0.05
SHARES = {"int8": (8, 0.55), "int4": (4, 0.32)}


def measure(plan: Plan) -> Iterator[Row]:
    yield from _windows(plan)
    yield from _bits()


def _windows(plan: Plan) -> Iterator[Row]:
    torch.manual_seed(0)
    config = mh.DecoderConfig(
        vocab_size=512, d_model=256, num_heads=8, num_layers=4, d_hidden=688, num_kv_heads=2,
        window=WINDOW,
    )  # fmt: skip
    model = mh.Decoder(config).eval()
    lengths = LENGTHS[:2] if plan.effort == "quick" else LENGTHS
    texts = {length: _read(model, length) for length in lengths}
    times = interleave(
        {str(length): _step(model, caches) for length, caches in texts.items()},
        plan.choose(quick=2, usual=15),
    )
    for length, caches in texts.items():
        yield {
            "cell": f"window, {length}",
            "length": length,
            "ms/token": 1e3 * float(np.median(times[str(length)])) / STEPS,
            "MiB": sum(cache.memory_bytes() for cache in caches) / 2**20,
        }


@torch.no_grad()
def _read(model: mh.Decoder, length: int) -> list[Cache]:
    caches = model.new_caches(lambda: mh.RingCache(WINDOW))
    for _ in range(length // CHUNK):
        model(torch.randint(0, 512, (1, CHUNK)), caches=caches, last_only=True)
    return caches


def _step(model: mh.Decoder, caches: list[Cache]) -> Callable[[], object]:
    tokens = torch.zeros(1, 1, dtype=torch.long)
    return lambda: mh.generate(model, tokens, max_new_tokens=STEPS, cache=caches)


def _bits() -> Iterator[Row]:
    sizes = {"num_kv_heads": 2, "head_dim": 64, "num_layers": 8, "dtype": torch.bfloat16}
    exact = mh.predict_bytes(mh.GrowingCache(), 8192, **sizes)
    for name, (bits, _) in SHARES.items():
        share = mh.predict_bytes(mh.QuantizedCache(bits), 8192, **sizes) / exact
        yield {"cell": f"{name}, 8192", "share of bf16": share}


def judge(rows: Sequence[Row]) -> list[Goal]:
    these = [row for row in rows if "length" in row]
    goals = []
    for what in ("ms/token", "MiB"):
        promise = f"behind a window, {what} grow with the length to the power {FLAT} at most"
        if len(these) < 2:
            goals.append(Goal(promise, None, ""))
            continue
        power = exponent([row["length"] for row in these], [row[what] for row in these])
        goals.append(Goal(promise, power <= FLAT, f"{power:.3f}"))
    for name, (_, most) in SHARES.items():
        found = [row["share of bf16"] for row in rows if row["cell"].startswith(name)]
        kept = found[0] <= most if found else None
        numbers = f"{found[0]:.3f}" if found else ""
        goals.append(Goal(f"{name} takes at most {most} of the bytes of bf16", kept, numbers))
    return goals


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 4))
    these = [row for row in rows if "length" in row]
    for index, what in enumerate(("ms/token", "MiB")):
        axes = figure.add_subplot(1, 2, index + 1)
        axes.semilogx([row["length"] for row in these], [row[what] for row in these], "o-")
        axes.set(xlabel="tokens read", ylabel=what, ylim=(0, None))
    return figure


KEEP = Benchmark(
    "keep",
    f"What does a token cost after ever longer texts, behind a window of {WINDOW} and in few bits?",
    ("cell",),
    measure,
    judge,
    draw,
)
