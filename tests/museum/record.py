"""Examine the whole museum and write down what was found.

python -m tests.museum.record          # what the record does not know yet
python -m tests.museum.record --all    # everything anew, in some minutes
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.museum.collection import BROKEN, HEALTHY, PUBLISHED
from tests.museum.exhibit import Exhibit
from tests.museum.manner import manner_of

from manyheads.doctor import Report, examine

PATH = Path(__file__).parent / "record.json"
Row = dict[str, Any]


def examined(exhibit: Exhibit) -> Report:
    """What the doctor says of an exhibit."""
    torch.manual_seed(0)
    return examine(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)


def row(exhibit: Exhibit) -> Row:
    """An exhibit as the record keeps it; seconds are those of one core, for the examination."""
    torch.manual_seed(0)
    model = exhibit.build()
    kernel, kind = manner_of(exhibit, model)
    torch.manual_seed(0)
    model = exhibit.build()
    began = time.process_time()
    report = examine(model, *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)
    took = time.process_time() - began
    return {
        "name": str(exhibit),
        "code": exhibit.code,
        "found": list(report.codes),
        "severities": [each.severity for each in report.findings],
        "where": report.findings[0].where if report.findings else "",
        "evidence": report.findings[0].evidence if report.findings else "",
        "kernel": kernel,
        "kind": kind,
        "seconds": round(took, 2),
    }


def read() -> dict[str, Row]:
    """The record, by the names of the exhibits."""
    return {each["name"]: each for each in json.loads(PATH.read_text(encoding="utf-8"))}


def write(rows: list[Row]) -> None:
    """Keep the record, a line an exhibit."""
    text = ",\n".join(json.dumps(each, ensure_ascii=False) for each in rows)
    PATH.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def main(anew: bool) -> None:
    """Examine, one exhibit after another, on one core."""
    torch.set_num_threads(1)
    exhibits = {str(each): each for each in (*BROKEN, *HEALTHY, *PUBLISHED)}
    known = read() if PATH.exists() and not anew else {}
    for name, exhibit in exhibits.items():
        if name not in known:
            known[name] = row(exhibit)
            # As they come, so that a run that fails goes on where it stood, without --all.
            write([known[each] for each in exhibits if each in known])
        print(name, known[name]["found"], known[name]["seconds"], flush=True)


if __name__ == "__main__":
    main("--all" in sys.argv)
