"""Every broken module is told its own disease first, and no healthy one is told any."""

import random
from collections import defaultdict

import pytest
import torch
from tests.museum import (
    cached,
    layers,
    masks,
    others,
    ours,
    places,
    scores,
    stranger_exhibits,
    tutorials,
)
from tests.museum.exhibit import Exhibit

from manyheads.doctor import CHECKS, Report, examine

WINGS = (masks, layers, scores, places, cached, tutorials, ours, others, stranger_exhibits)
BROKEN = [each for wing in WINGS for each in wing.BROKEN]
HEALTHY = [each for wing in WINGS for each in wing.HEALTHY]


CASES = {
    "MASK-01": ("float01_mask_added-matmul", "mask_inverted-padding-matmul"),
    "MASK-02": ("mask_lost-ignored-matmul",),
    "MASK-03": ("mask_wrong_axis-tiled-torch", "mask_wrong_axis-tiled-matmul"),
    "MASK-04": ("empty_row_nan-infinite-matmul", "empty_row_nan-mended-matmul"),
    "MASK-06": ("half_overflow-billion-matmul", "padding_leak-faint"),
    "CAUS-02": ("future_leak-no-mask", "mask_lost-fused-drops-causal"),
    "PAD-01": ("left_pad_position-table",),
    "SWA-01": ("window_off_by_one-wider-matmul",),
    "SWA-02": ("cache_mismatch-ring-overwrites",),
    "BEAM-01": ("beam_aliasing-keys-only", "beam_aliasing-row-by-row"),
    "GQA-01": ("gqa_order-matmul", "gqa_order-fused"),
    "ROPE-03": ("position_offset_cache-rotary-from-zero",),
    "ALIBI-01": ("cache_mismatch-alibi-from-zero",),
    "SIN-01": ("no_position-by-batch",),
    "DROP-01": ("dropout_in_eval-fused",),
    "DROP-02": ("weights_after_dropout-matmul", "weights_after_dropout-torch"),
    "VIEW-01": ("heads_merged_wrong-matmul", "batch_mixing-length-first"),
    "KDIM-01": ("unused_parameters-spare-projection",),
    "NEST-01": ("train_eval_mismatch-shorter-in-eval",),
    "MEM-01": ("quadratic_memory-fused-mask-per-head",),
}
"""The publicly reported faults of tests/cases that a module can show, and the exhibits of each."""


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
    for name in ("x-transformers", "local-attention"):
        if exhibit.name.startswith(name):
            reason = f"until {name} and all that it requires can be imported"
            pytest.importorskip(name.replace("-", "_"), reason=reason)
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


def test_publicly_reported_faults_are_in_the_museum() -> None:
    names = {str(exhibit) for exhibit in BROKEN}
    assert {each for shown_by in CASES.values() for each in shown_by} <= names
