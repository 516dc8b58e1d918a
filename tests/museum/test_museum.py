"""Every broken module is told its own disease first, and no healthy one is told any."""

import random
from collections import defaultdict

import pytest
import torch
from tests.museum import cached, layers, masks, others, ours, scores, tutorials
from tests.museum.exhibit import Exhibit

from manyheads.doctor import CHECKS, Report, examine

WINGS = (masks, layers, scores, cached, tutorials, ours, others)
BROKEN = [each for wing in WINGS for each in wing.BROKEN]
HEALTHY = [each for wing in WINGS for each in wing.HEALTHY]


def sampled(exhibits: list[Exhibit], count: int) -> set[int]:
    """A seeded sample: one exhibit of each code, or so many of the healthy."""
    drawn = random.Random(0).sample(exhibits, len(exhibits))
    by_code = {each.code: each for each in drawn}
    return set(map(id, drawn[:count] if by_code.keys() == {""} else by_code.values()))


SAMPLE = sampled(BROKEN, 0) | sampled(HEALTHY, 16)


def shown(exhibits: list[Exhibit]) -> list[object]:
    """All of them; those outside of the sample are long."""
    return [
        pytest.param(each, id=str(each), marks=() if id(each) in SAMPLE else pytest.mark.long)
        for each in exhibits
    ]


def examined(exhibit: Exhibit) -> Report:
    if exhibit.name.startswith("x-transformers"):
        pytest.importorskip("x_transformers", reason="its own requirements are not all installed")
    torch.manual_seed(0)
    return examine(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)


@pytest.mark.parametrize("exhibit", shown(BROKEN))
def test_a_broken_module_is_told_its_own_disease_first(exhibit: Exhibit) -> None:
    report = examined(exhibit)
    assert report.codes[:1] == (exhibit.code,), str(report)
    assert len(report.codes) <= 3, str(report)


@pytest.mark.parametrize("exhibit", shown(HEALTHY))
def test_a_healthy_module_is_told_nothing(exhibit: Exhibit) -> None:
    report = examined(exhibit)
    assert report.healthy, str(report)


@pytest.mark.parametrize("exhibit", tutorials.BROKEN, ids=str)
def test_all_that_is_wrong_with_the_tutorials_layers_is_found(exhibit: Exhibit) -> None:
    assert tutorials.FAULTS[exhibit.name] <= set(examined(exhibit).codes)


def test_each_disease_is_shown_in_two_styles_at_least() -> None:
    styles = defaultdict(set)
    for exhibit in BROKEN:
        styles[exhibit.code].add(exhibit.name)
    assert {check.code for check in CHECKS} == styles.keys()
    assert min(map(len, styles.values())) >= 2
    assert len(BROKEN) >= 80
    assert len(HEALTHY) >= 40
