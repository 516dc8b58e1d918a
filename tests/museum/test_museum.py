"""Every broken module is told its own disease first, and no healthy one is told any."""

import importlib.util
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.museum import tutorials
from tests.museum.collection import (
    BROKEN,
    CASES,
    HEALTHY,
    INSTALL,
    NO_MODULE,
    PUBLISHED,
    SAMPLE,
)
from tests.museum.exhibit import Exhibit
from tests.museum.record import examined, read

from manyheads.doctor import CHECKS, Report

RECORD = read()
DOCS = Path(__file__).parents[2] / "docs"


def shown(exhibits: Iterable[Exhibit]) -> list[object]:
    """All of them; those outside of the sample are long."""
    return [
        pytest.param(each, id=str(each), marks=() if id(each) in SAMPLE else pytest.mark.long)
        for each in exhibits
    ]


def seen(exhibit: Exhibit) -> Report:
    if exhibit.package:
        reason = f"until {INSTALL[exhibit.package]}"
        pytest.importorskip(exhibit.package, reason=reason, exc_type=ImportError)
    return examined(exhibit)


@pytest.mark.parametrize("exhibit", shown((*BROKEN, *PUBLISHED)))
def test_a_broken_module_is_told_its_own_disease_first(exhibit: Exhibit) -> None:
    report = seen(exhibit)
    assert report.codes[:1] == (exhibit.code,), str(report)
    assert list(report.codes) == RECORD[str(exhibit)]["found"], str(report)


@pytest.mark.parametrize("exhibit", shown(HEALTHY))
def test_a_healthy_module_is_told_nothing(exhibit: Exhibit) -> None:
    report = seen(exhibit)
    assert report.healthy, str(report)
    assert list(report.codes) == RECORD[str(exhibit)]["found"], str(report)


@pytest.mark.parametrize("exhibit", tutorials.BROKEN, ids=str)
def test_all_that_is_wrong_with_the_tutorials_layers_is_found(exhibit: Exhibit) -> None:
    found = RECORD[str(exhibit)]["found"]  # held by the tests above
    assert tutorials.FAULTS[exhibit.name] <= set(found)


def test_names_are_given_once() -> None:
    names = [str(each) for each in (*BROKEN, *HEALTHY, *PUBLISHED)]
    assert len(names) == len(set(names))


def test_the_museum_is_as_large_as_it_says() -> None:
    assert len(BROKEN) >= 80
    assert len(HEALTHY) >= 40


def test_each_disease_is_shown_in_two_styles_at_least() -> None:
    styles = defaultdict(set)
    for each in BROKEN:
        styles[each.code].add((RECORD[str(each)]["kernel"], RECORD[str(each)]["kind"]))
    assert {check.code for check in CHECKS} == styles.keys()
    assert [code for code, ways in styles.items() if len(ways) < 2] == []


def test_every_way_of_writing_attention_is_shown_broken() -> None:
    rows = [RECORD[str(each)] for each in BROKEN]
    assert {row["kernel"] for row in rows} >= {"matmul", "einsum", "SDPA", "nn.MultiheadAttention"}
    assert {row["kind"] for row in rows} >= {
        "layer", "language model", "cached decoder", "cross-attention", "encoder-decoder",
        "image model", "Hugging Face style",
    }  # fmt: skip


def test_publicly_reported_faults_are_in_the_museum() -> None:
    names = {str(exhibit) for exhibit in BROKEN}
    assert {each for shown_by in CASES.values() for each in shown_by} <= names
    assert not CASES.keys() & NO_MODULE.keys()
    assert len(CASES) + len(NO_MODULE) == 36


# What the record promises; the tests above hold the record to what is found.


def test_the_record_knows_every_exhibit() -> None:
    names = {str(each) for each in (*BROKEN, *HEALTHY, *PUBLISHED)}
    assert names == RECORD.keys(), "run: python -m tests.museum.record"


def test_a_broken_module_has_at_most_one_further_finding_on_average() -> None:
    further = [len(RECORD[str(each)]["found"]) - 1 for each in BROKEN]
    assert sum(further) <= len(further)


def test_a_healthy_module_has_no_error_and_hardly_a_warning() -> None:
    severities = [RECORD[str(each)]["severities"] for each in HEALTHY]
    assert not any("error" in each for each in severities)
    assert sum("warning" in each for each in severities) <= 0.02 * len(severities)


def test_an_examination_takes_a_second() -> None:
    large = {"SmolLM2"}
    took = sorted(row["seconds"] for name, row in RECORD.items() if name not in large)
    assert took[len(took) // 2] <= 1
    assert took[-1] <= 10
    assert all(RECORD[name]["seconds"] <= 60 for name in large)


def test_the_page_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("museum_page", DOCS / "museum.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = (DOCS / "museum.md").read_text(encoding="utf-8")
    assert written == script.page(RECORD), "run: python docs/museum.py"
