"""Results as files: numbers for machines, tables and pictures for people."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.benchmark import Benchmark, Goal, Row
from benchmarks.machine import Machine
from manyheads.files import write_text

RESULTS = Path(__file__).parent / "results"


def earlier(benchmark: Benchmark, machine: Machine, folder: Path = RESULTS) -> list[Row]:
    """The rows of earlier runs on the same machine, so that a long table can grow in parts."""
    path = folder / f"{benchmark.name}.json"
    if not path.exists():
        return []
    held = json.loads(path.read_text())
    return held["rows"] if held["machine"] == machine else []


def join(benchmark: Benchmark, rows: Sequence[Row], row: Row) -> list[Row]:
    """Rows with one more, which takes the place of the one with its key."""

    def key(row: Row) -> list[object]:
        return [row.get(name) for name in benchmark.key]

    return [old for old in rows if key(old) != key(row)] + [row]


def write(
    benchmark: Benchmark, rows: Sequence[Row], machine: Machine, folder: Path = RESULTS
) -> None:
    """Write ``NAME.json`` and ``NAME.md``."""
    path = folder / f"{benchmark.name}.json"
    goals = benchmark.judge(rows)
    told = {
        "question": benchmark.question,
        "machine": machine,
        "goals": [{**vars(goal)} for goal in goals],
        "rows": list(rows),
    }
    write_text(path, json.dumps(told, indent=1) + "\n")
    write_text(path.with_suffix(".md"), page(benchmark, rows, goals, machine))


def page(benchmark: Benchmark, rows: Sequence[Row], goals: Sequence[Goal], machine: Machine) -> str:
    """The whole result as Markdown."""
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join(
        [
            f"# {benchmark.name}",
            "",
            benchmark.question,
            "",
            f"Machine: {about}. Made by `python -m benchmarks {benchmark.name}`.",
            "",
            *table([{"goal": g.promise, "": g.verdict, "numbers": g.numbers} for g in goals]),
            "",
            f"![{benchmark.name}]({benchmark.name}.png)",
            "",
            *table(rows),
            "",
        ]
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Rows as lines of Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [
        "| " + " | ".join(names) + " |",
        "|" + " --- |" * len(names),
        *("| " + " | ".join(shown(row.get(name)) for name in names) + " |" for row in rows),
    ]


def shown(value: object) -> str:
    """One entry of a table."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"{value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
