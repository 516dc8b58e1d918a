"""Write docs/museum.md from the museum and the record of its last examination.

python -m tests.museum.record && python docs/museum.py
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

PAGE = Path(__file__).parent / "museum.md"
sys.path.insert(0, str(PAGE.parents[1]))  # where the museum is

from tests.museum.collection import (  # noqa: E402
    BROKEN,
    CASES,
    HEALTHY,
    HEALTHY_BY_SOURCE,
    INSTALL,
    NO_MODULE,
    PUBLISHED,
)
from tests.museum.exhibit import Exhibit  # noqa: E402
from tests.museum.record import Row, read  # noqa: E402

from manyheads.doctor import CHECKS  # noqa: E402

LARGE = "SmolLM2"

HEAD = """# Museum

What the [doctor](doctor.md) is held to: modules with a known disease, each of which must be told
that disease first, and healthy ones, which must be told nothing. They hang in
[tests/museum](../tests/museum); a seeded sample is examined by `make test`, all of them by
`make test-long`. This page is written by `docs/museum.py` from the record of one examination of
them all, which the tests compare with what they find:

```
python -m tests.museum.record --all && python docs/museum.py
```
"""

PACKAGES = {
    "attnhut": (
        "`is_causal` is passed on only when no mask is given, so a layer built with "
        "`causal=True` reads the future as soon as it gets a padding mask; combine the two "
        "before the call. Its sparse layers choose keys by an indexer that no gradient of the "
        "output reaches: as in the paper, it is trained by the auxiliary loss of "
        "`return_aux=True`, with which the doctor finds nothing. Slot attention draws its "
        "slots anew at each call by design. BigBird's random blocks are drawn by the number of "
        "all blocks, so what a row sees depends on how far it is padded."
    ),
    "autoattn": (
        "The same for the dense and the flash backend; the local one says that it ignores "
        "masks. A bool mask means *hidden* to the dense backend and *seen* to the flash one, "
        "so the router's answer depends on what it was routed to. On a CPU it is always the "
        "dense one."
    ),
    "attzoo": (
        "The weights that come back have been through dropout, so in training they do not sum "
        "to 1; a row without a key is NaN. The hashing layer draws its directions anew at "
        "each call by design. The package asks for Python 3.12 and runs on 3.11."
    ),
    "x_transformers": (
        "A call with a cache answers one token, the last, however many are new, unless it is "
        "told their number by `cache_age=`; then all is well. Without it the keys of the "
        "others never reach the cache."
    ),
    "performer_pytorch": (
        "The causal form subtracts a maximum over all keys, later ones included, before it "
        "adds a small constant: what leaks is some hundred-thousandths of an output. The "
        "dependence on places that is told beside it is the same leak."
    ),
    "transformers": (
        "ConvBERT's convolutions read the padding beside a text. mT5's "
        "head begins far from guessing when it is drawn and not loaded. DINOv2's mask token "
        "is read only in the training that masks patches; distributed training wants to know."
    ),
}
"""What the findings mean, by the package that was examined."""


def cells(*values: Any) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(each).replace("|", r"\|") for each in values) + " |"


def titles(*names: str) -> list[str]:
    """The first two lines of a table."""
    return [cells(*names), cells(*("---" for _ in names))]


def seconds(rows: Iterable[Row]) -> str:
    """The median and the most."""
    took = [each["seconds"] for each in rows]
    return f"{median(took):.1f} / {max(took):.1f}"


def page(record: dict[str, Row]) -> str:
    """The text of docs/museum.md."""

    def rows(exhibits: Sequence[Exhibit]) -> list[Row]:
        return [record[str(each)] for each in exhibits]

    parts = [
        HEAD,
        *_totals(rows(BROKEN), rows(HEALTHY), list(record.values())),
        *_diseases(rows(BROKEN)),
        *_healthy({name: rows(wing) for name, wing in HEALTHY_BY_SOURCE.items()}),
        *_published(rows(PUBLISHED)),
        *_cases(),
    ]
    return "\n".join(parts) + "\n"


def _totals(broken: list[Row], healthy: list[Row], every: list[Row]) -> Iterator[str]:
    first = sum(each["found"][:1] == [each["code"]] for each in broken)
    further = mean(len(each["found"]) - 1 for each in broken)
    told = [set(each["severities"]) for each in healthy]
    took = [each["seconds"] for each in every if each["name"] != LARGE]
    yield from titles("promise", "found")
    yield cells("each broken module's own disease comes first", f"{first} of {len(broken)} modules")
    yield cells("at most 1 further finding on average", f"{further:.2f}")
    yield cells(
        "no healthy module is told an error", f"{sum('error' in each for each in told)} "
        f"of {len(healthy)} modules"
    )  # fmt: skip
    yield cells(
        "at most 2 % of them are told a warning", f"{sum('warning' in each for each in told)} of "
        f"{len(healthy)}"
    )  # fmt: skip
    yield cells(
        "an examination takes 1 s in the median, 10 s at most",
        f"{median(took):.2f} s, {max(took):.1f} s, on one core",
    )
    large = next(each for each in every if each["name"] == LARGE)
    yield cells("60 s for 135 million weights", f"{large['seconds']:.0f} s, on one core")


def _diseases(broken: list[Row]) -> Iterator[str]:
    yield "\n## The broken wing\n"
    yield "Ways of writing it are read from a run: the function that mixes values, and the kind of"
    yield "model. Seconds, here and below, are the median and the most, of one core.\n"
    yield from titles(
        "disease", "modules", "told first", "ways of writing it", "told beside it", "s"
    )
    for check in CHECKS:
        own = [each for each in broken if each["code"] == check.code]
        ways = Counter(f"{each['kernel']} {each['kind']}" for each in own)
        beside = Counter(code for each in own for code in each["found"][1:])
        yield cells(
            f"[{check.code}](doctor.md#{check.code})",
            len(own),
            sum(each["found"][:1] == [check.code] for each in own),
            _counted(ways),
            _counted(beside),
            seconds(own),
        )


def _counted(names: Counter[str]) -> str:
    return ", ".join(
        f"{name} {count}x" if count > 1 else name for name, count in names.most_common()
    )


def _healthy(wings: dict[str, list[Row]]) -> Iterator[str]:
    yield "\n## The healthy wing\n"
    yield "Notes are no alarm: most say that a row without a key is a mean of hidden values.\n"
    yield from titles("from", "modules", "errors", "warnings", "notes", "s")
    for name, rows in wings.items():
        told = Counter(severity for each in rows for severity in each["severities"])
        counts = [told[severity] for severity in ("error", "warning", "note")]
        yield cells(name, len(rows), *counts, seconds(rows))


def _published(rows: list[Row]) -> Iterator[str]:
    yield "\n## Other people's modules\n"
    yield "Published packages, examined as they are, with no intent but to test the doctor:"
    yield "each is worth reading, and most of what is told is a matter of how a layer is"
    yield "called. torch's own layers, whose rows without a key are NaN where a padding mask"
    yield "hides them, are in the broken wing."
    packages = {each.package: None for each in PUBLISHED}
    for package in packages:
        yield f"\n**{package}** (`{INSTALL[package]}`). {PACKAGES[package]}\n"
        yield from titles("module", "finding", "where", "measured")
        for exhibit, row in zip(PUBLISHED, rows, strict=True):
            if exhibit.package == package:
                finding = f"[{row['found'][0]}](doctor.md#{row['found'][0]})"
                yield cells(exhibit.name, finding, row["where"], row["evidence"])


def _cases() -> Iterator[str]:
    yield "\n## Publicly reported faults\n"
    yield "The [cases](../tests/cases) that a module can show, and the exhibits that do.\n"
    yield from titles("case", "shown by")
    for case, names in CASES.items():
        yield cells(case, ", ".join(f"`{name}`" for name in names))
    yield "\nThe others, and why no module on the table can show them:\n"
    yield from titles("case", "because")
    for case, reason in NO_MODULE.items():
        yield cells(case, reason)


if __name__ == "__main__":
    PAGE.write_text(page(read()), encoding="utf-8")
    print(f"{len(BROKEN)} broken, {len(HEALTHY)} healthy, {len(PUBLISHED)} published: {PAGE}")
