"""``python -m benchmarks.gpu``: every backend's laws on one CUDA device, and a table of speeds.

Made for a device that is lent for minutes: it begins with what matters most, writes as it goes, and
says what it did not reach.
"""

import argparse
import dataclasses
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import manyheads as mh
from benchmarks.benchmark import Row
from benchmarks.report import RESULTS, shown, table
from benchmarks.rounds import Contender, interleave
from manyheads.files import write_text
from manyheads.functional import BACKENDS, Call, Result
from manyheads.laws import SUITES, Convention, LawBroken, check_attention
from manyheads.laws.backend import BRIEF, Trial
from manyheads.laws.calls import BackendCase
from manyheads.laws.law import hold

MINUTES = 4.0
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
# It compiles anew for each kind of call, which takes seconds.
SLOW_TO_COMPILE = {"flex"}


@dataclass(frozen=True)
class Job:
    """What is tried, and until when.

    Args:
        device: Where.
        ends: When to begin nothing new, by ``time.monotonic``.
        small: Whether this is a trial of the script itself.
    """

    device: str
    ends: float
    small: bool

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.ends


def stages(job: Job) -> Iterator[tuple[str, Row]]:
    """Rows of "laws" and "speeds", in an order that leaves undone what matters least."""
    compiled = [name for name in BACKENDS if name in SLOW_TO_COMPILE]
    dtypes = DTYPES[:1] if job.small else DTYPES
    for dtype in dtypes:
        for name in [name for name in BACKENDS if name not in compiled]:
            yield "laws", _held(job, name, dtype)
        yield "laws", _attention_held(job, dtype)
    for name in compiled:
        yield "laws", _held(job, name, dtypes[0])
    for row in speeds(job):
        yield "speeds", row
    for dtype, name in itertools.product(dtypes[1:], compiled):
        yield "laws", _held(job, name, dtype)


def _held(job: Job, name: str, dtype: torch.dtype) -> Row:
    """Hold one backend to its laws; tell how many calls it did, and the first law that it broke."""
    begun, calls, broken = time.monotonic(), [0], []
    backend = BACKENDS[name]
    suite = BRIEF if job.small or name in SLOW_TO_COMPILE else SUITES["backend"]

    def counted(call: Call) -> Result:
        calls[0] += 1
        return backend.run(call)

    row: Row = {"backend": backend.name, "dtype": str(dtype)[6:]}
    counting = dataclasses.replace(backend, run=counted)
    trial = Trial(counting, BackendCase(device=job.device, dtype=dtype), thorough=False)
    held = 0
    for law in suite:
        if job.late:
            break
        try:
            hold((law,), trial)
        except LawBroken as error:
            broken.append(" ".join(str(error).split())[:400])
        held += 1
    row |= {"laws": f"{held} of {len(suite)}", "calls": calls[0], "broken": len(broken)}
    return row | {"seconds": time.monotonic() - begun, "first broken": "; ".join(broken[:1])}


def _attention_held(job: Job, dtype: torch.dtype) -> Row:
    begun, broken = time.monotonic(), ""

    def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return mh.attention(q, k, v)
        return mh.attention(q, k, v, mh.Dense(mask) & mh.Padding(mask.any(dim=(1, 2))))

    try:
        check_attention(ours, Convention(dtype=dtype), device=job.device)
    except LawBroken as error:
        broken = " ".join(str(error).split())[:400]
    row = {"backend": "auto", "dtype": str(dtype)[6:], "laws": "those of attention", "calls": None}
    seconds = time.monotonic() - begun
    return row | {"broken": int(bool(broken)), "seconds": seconds, "first broken": broken}


def masks(batch: int, length: int, device: str) -> dict[str, mh.Mask | None]:
    """What is timed, by a name for each."""
    lengths = torch.linspace(0.2, 0.8, batch).mul(length).long().to(device)
    ids = (torch.arange(length, device=device) * 8 // length).expand(batch, -1)
    return {
        "none": None,
        "causal": mh.Causal(),
        "window 256": mh.Causal() & mh.Window(256),
        "half padding": mh.Causal() & mh.Padding(lengths=lengths),
        "8 documents": mh.Causal() & mh.Documents(ids),
    }


def speeds(job: Job) -> Iterator[Row]:
    """Time `attention` beside torch's own ways of doing the same."""
    batch, heads, length, width = (2, 2, 128, 16) if job.small else (4, 16, 4096, 64)
    dtype = torch.float32 if job.small else torch.bfloat16
    shape = batch, heads, length, width
    q, k, v, weight = (torch.randn(shape, device=job.device, dtype=dtype) for _ in range(4))
    for name, mask in masks(batch, length, job.device).items():
        for training in (False, True):
            if job.late:
                return
            leaves = [x.detach().requires_grad_(training) for x in (q, k, v)]
            ways = _ways(mask, batch, length, job)
            steps = {way: _step(attend, leaves, weight) for way, attend in ways.items()}
            chosen = mh.explain(*leaves, mask, verbose=False).chosen
            call = f"{name}{' forward+backward' * training}"
            yield {"call": call, "ours is": chosen} | _timed(steps, job)
    yield from _layers(job, batch, length, heads * width, heads, dtype)


def _ways(
    mask: mh.Mask | None, batch: int, length: int, job: Job
) -> dict[str, Callable[..., Tensor]]:
    causal = isinstance(mask, mh.Causal)
    seen = None if mask is None or causal else mask.dense(length, batch=batch).to(job.device)
    ways: dict[str, Callable[..., Tensor]] = {
        "ours": lambda q, k, v: mh.attention(q, k, v, mask),
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, seen, is_causal=causal),
    }
    if job.device == "cuda" and mask is not None:
        whole = mask.dense(length, batch=batch).to(job.device)
        blocks = create_block_mask(
            lambda b, h, i, j: whole[b, 0, i, j], batch, None, length, length, device=job.device
        )
        compiled = torch.compile(flex_attention)
        ways["flex"] = lambda q, k, v: compiled(q, k, v, block_mask=blocks)
    return ways


def _step(attend: Callable[..., Tensor], leaves: Sequence[Tensor], weight: Tensor) -> Contender:
    if not leaves[0].requires_grad:
        return lambda: attend(*leaves)
    return lambda: torch.autograd.grad(attend(*leaves), leaves, weight)


def _layers(
    job: Job, batch: int, length: int, d_model: int, heads: int, dtype: torch.dtype
) -> Iterator[Row]:
    if job.late:
        return
    at = {"device": job.device, "dtype": dtype}
    x = torch.randn(batch, length, d_model, **at)
    ours = mh.MultiHeadAttention(d_model, heads).to(**at).eval()
    theirs = nn.MultiheadAttention(d_model, heads, batch_first=True).to(**at).eval()
    with torch.no_grad():
        steps: dict[str, Contender] = {
            "ours": lambda: ours(x),
            "nn.MultiheadAttention": lambda: theirs(x, x, x, need_weights=False),
        }
        yield {"call": "layer", "ours is": None} | _timed(steps, job)


def _timed(steps: dict[str, Contender], job: Job) -> Row:
    """Milliseconds of each step; what a step raises stands in its place."""

    def clock() -> float:
        if job.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    row: Row = {}
    for way, step in list(steps.items()):
        try:
            step()
        except Exception as error:  # one that cannot must not cost the others their turn
            row[f"{way} ms"] = repr(error)[:100]
            del steps[way]
    times = interleave(steps, 2 if job.small else 7, clock=clock)
    return row | {f"{way} ms": 1e3 * float(np.median(times[way])) for way in times}


def describe(device: str) -> dict[str, str]:
    """What the numbers hang on."""
    about = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        about |= {"device": torch.cuda.get_device_name(), "capability": capability}
        about |= {"CUDA": str(torch.version.cuda)}
    return about


def write(held: Sequence[Row], timed: Sequence[Row], about: dict[str, str], folder: Path) -> None:
    """Write ``gpu.json`` and ``gpu.md``."""
    told = {"about": about, "laws": list(held), "speeds": list(timed)}
    write_text(folder / "gpu.json", json.dumps(told, indent=1) + "\n")
    lines = ["# gpu", "", "Laws and speeds of every backend on one device.", ""]
    lines += [", ".join(f"{name} {value}" for name, value in about.items()) + ".", ""]
    lines += [*table(held), "", *table(timed), ""]
    write_text(folder / "gpu.md", "\n".join(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, try what it names; 0 if no law is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script itself"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin nothing after these")
    parser.add_argument("--folder", type=Path, help="where gpu.* is written; a trial keeps nothing")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("No CUDA device was found, so nothing was checked.", file=sys.stderr)
        print("Run it where torch.cuda.is_available() is True.", file=sys.stderr)
        return 1
    warnings.simplefilter("ignore")
    small = options.device == "cpu"
    folder = options.folder or (None if small else RESULTS)
    job = Job(options.device, time.monotonic() + 60 * options.minutes, small)
    found: dict[str, list[Row]] = {"speeds": [], "laws": []}
    about = describe(job.device)
    for name, row in stages(job):
        print("  ".join(f"{key} {shown(value)}" for key, value in row.items()), flush=True)
        found[name].append(row)
        if folder is not None:
            write(found["laws"], found["speeds"], about, folder)
    broken = sum(row["broken"] for row in found["laws"])
    print(f"{broken} laws broken" if broken else "no law broken", end="; ")
    print("the time was over before all was done" if job.late else "all was done")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
