"""``python -m benchmarks [NAME ...]``: measure, write tables and pictures, say what was met."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks import BENCHMARKS
from benchmarks.benchmark import Benchmark, Plan
from benchmarks.machine import describe, is_busy
from benchmarks.report import RESULTS, earlier, join, shown, write


def run(benchmark: Benchmark, plan: Plan, *, missing: bool = False) -> None:
    """Measure one benchmark and print its rows as they come; keep them unless it is a trial."""
    machine, keeps = describe(), plan.effort != "quick" and plan.rounds is None
    rows = earlier(benchmark, machine) if keeps else []
    if missing:
        plan = replace(plan, done={str(row.get("cell")): row for row in rows})
    print(f"\n{benchmark.name}: {benchmark.question}", flush=True)
    for row in benchmark.measure(plan):
        print("  " + "  ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
        rows = join(benchmark, rows, row)
        if keeps:
            write(benchmark, rows, machine)  # as they come, so that a long run may be stopped
            figure = benchmark.draw(rows)
            figure.savefig(RESULTS / f"{benchmark.name}.png", dpi=100, bbox_inches="tight")
    for goal in benchmark.judge(rows):
        print(f"  {goal.verdict.strip('*')}: {goal.promise}. {goal.numbers}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run what it names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    parser.add_argument("--list", action="store_true", help="say what there is")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument(
        "--quick", action="store_true", help="try it, under two minutes; keep nothing"
    )
    effort.add_argument("--full", action="store_true", help="every cell, which may take hours")
    parser.add_argument("--missing", action="store_true", help="leave cells out that have results")
    parser.add_argument("--rounds", type=int, help="rounds of each cell; keeps nothing either")
    parser.add_argument("--threads", type=int, default=1, help="of torch; default: 1")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"NAME must be one of {', '.join(BENCHMARKS)}; got {', '.join(unknown)}")
    if options.list:
        for benchmark in BENCHMARKS.values():
            print(f"{benchmark.name:<10} {benchmark.question}")
        return 0
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    if is_busy():
        print("Others want these cores too: trust ratios and CPU time, not single wall times.")
    effort = "quick" if options.quick else "full" if options.full else "usual"
    for name in options.names or BENCHMARKS:
        run(BENCHMARKS[name], Plan(effort, options.rounds), missing=options.missing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
