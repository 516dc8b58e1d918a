"""What `import manyheads` adds to `import torch`."""

import compileall
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import manyheads
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave

LIMIT = 60.0
CODE = """
import time, torch
start = time.process_time()
{statement}
print(time.process_time() - start)
"""


def added_milliseconds(statement: str) -> float:
    """CPU time of a statement in a fresh interpreter that has torch."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    return 1000 * float(done.stdout)


def measure(plan: Plan) -> Iterator[Row]:
    # As after an installation, which compiles what it brings.
    compileall.compile_dir(Path(manyheads.__file__).parent, quiet=2)
    rounds = plan.choose(quick=3, usual=11)
    statements = ("import manyheads", "from manyheads import attention", "import jaxtyping")
    spent: dict[str, list[float]] = {statement: [] for statement in statements}
    interleave({s: lambda s=s: spent[s].append(added_milliseconds(s)) for s in statements}, rounds)
    for statement, times in spent.items():
        kept = times[-rounds:]
        yield {
            "after import torch": statement,
            "rounds": rounds,
            "least ms": min(kept),
            "median ms": float(np.median(kept)),
        }


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = f"`import manyheads` adds at most {LIMIT:.0f} ms to `import torch`"
    ours = [row for row in rows if row["after import torch"] == "import manyheads"]
    if not ours:
        return [Goal(promise, None, "")]
    median = ours[0]["median ms"]
    used = [row["median ms"] for row in rows if row["after import torch"].startswith("from")]
    first = "".join(f"; {time:.0f} ms with the first use of attention" for time in used)
    numbers = f"{median:.1f} ms of CPU time in the median{first}"
    return [Goal(promise, median <= LIMIT, numbers)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 2.5))
    axes = figure.add_subplot()
    axes.barh([row["after import torch"] for row in rows], [row["median ms"] for row in rows])
    axes.axvline(LIMIT, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("CPU milliseconds after import torch, median")
    return figure


IMPORTING = Benchmark(
    "importing",
    "How long does `import manyheads` take when torch is there already?",
    ("after import torch",),
    measure,
    judge,
    draw,
)
