"""What ``manyheads look`` writes, as the file's ending says: a picture, a page, a table, arrays."""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from manyheads.cli.seen import Seen
from manyheads.files import PAGES, check_path, write_text, write_whole
from manyheads.lens import HeadSummary, Portrait, draw_heads, write_page
from manyheads.lens.paper import picture_path
from manyheads.lens.summary import between_texts


def writer(path: Path, title: str) -> Callable[[Mapping[str, Seen]], object]:
    """What writes all heads to a path; refuses a path that cannot be, before any work is done.

    It takes readings by name: a page shows all of them, everything else the first.
    """
    ending = path.suffix.lower()
    if ending in PAGES:
        check_path(path, example="heads.html")
        return lambda readings: _page(readings, path, title)
    if ending in _TABLES:
        check_path(path, example="heads.csv")
        return lambda readings: _TABLES[ending](_first(readings), path)
    picture_path(path)
    return lambda readings: _picture(_first(readings), path, title)


def table(seen: Seen) -> list[HeadSummary]:
    """A record of each head, layer by layer."""
    return [
        between_texts(head) if seen.crosses(portrait.layer) else head
        for portrait in seen.portraits
        for head in portrait.summaries
    ]


def _first(readings: Mapping[str, Seen]) -> Seen:
    return next(iter(readings.values()))


def _page(readings: Mapping[str, Seen], path: Path, title: str) -> None:
    write_page(
        {name: seen.portraits for name, seen in readings.items()},
        {name: seen.queries for name, seen in readings.items()},
        {name: seen.keys for name, seen in readings.items()},
        path=path,
        title=title,
    )


def _picture(seen: Seen, path: Path, title: str) -> None:
    draw_heads(
        {each.layer: each.cells for each in seen.portraits},
        {each.layer: _at_cells(seen.queries, each, 0) for each in seen.portraits},
        {each.layer: _at_cells(seen.keys, each, 1) for each in seen.portraits},
        title=title,
        path=path,
    )


def _at_cells(labels: dict[str, list[str]], portrait: Portrait, side: int) -> list[str]:
    """The label of each cell's first token."""
    count, length = portrait.cells.shape[1 + side], portrait.lengths[side]
    own = labels[portrait.layer]
    return own if count == length else [own[-(-cell * length // count)] for cell in range(count)]


def _json(seen: Seen, path: Path) -> None:
    content = {
        "heads": [asdict(head) for head in table(seen)],
        "queries": seen.queries,
        "keys": seen.keys,
    }
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _csv(seen: Seen, path: Path) -> None:
    records = [asdict(head) for head in table(seen)]
    names = [name for name in records[0] if name != "strongest"]
    written = StringIO()
    rows = csv.DictWriter(written, names, extrasaction="ignore")
    rows.writeheader()
    rows.writerows(records)
    write_text(path, written.getvalue())


def _npz(seen: Seen, path: Path) -> None:
    arrays: dict[str, Any] = {}
    for each in seen.portraits:
        arrays[f"{each.layer}/{'weights' if each.is_exact else 'greatest'}"] = each.cells.numpy()
        arrays[f"{each.layer}/rows"] = each.rows.numpy()
        arrays[f"{each.layer}/top_keys"] = each.top_keys.numpy()
        arrays[f"{each.layer}/top_weights"] = each.top_weights.numpy()
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


_TABLES = {".json": _json, ".csv": _csv, ".npz": _npz}
