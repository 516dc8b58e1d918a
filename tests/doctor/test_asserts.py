"""Each assert fails on what is broken, naming the pair, and passes on its healthy peer."""

import re

import pytest
import torch
from tests.museum import cached, layers, masks
from tests.museum.exhibit import Exhibit

import manyheads as mh
from manyheads.doctor import (
    CacheFacts,
    Facts,
    assert_batch_invariant,
    assert_cache_consistent,
    assert_causal,
    assert_isolated_documents,
    assert_padding_invariant,
)
from manyheads.errors import ExamineError

HELD = {
    "future_leak": (assert_causal, r"output \d+ reads input \d+"),
    "padding_leak": (assert_padding_invariant, r"(output \d+ reads padding at|pooled output)"),
    "mask_lost": (assert_padding_invariant, r"argument 'padding_mask'"),
    "batch_mixing": (assert_batch_invariant, r"row \d reads row \d|row \d"),
    "cache_mismatch": (assert_cache_consistent, r"from token \d+ on"),
    "position_offset_cache": (assert_cache_consistent, r"from token \d+ on"),
    "document_leak": (assert_isolated_documents, r"output \d+ reads the other document"),
}
BROKEN = [
    each
    for wing in (masks, layers, cached)
    for each in wing.BROKEN
    if each.code in HELD and "second-layer" not in each.name
]


@pytest.mark.parametrize("exhibit", BROKEN, ids=str)
def test_an_assert_fails_on_the_broken_and_names_the_first_illegal_pair(exhibit: Exhibit) -> None:
    hold, message = HELD[exhibit.code]
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=message):
        hold(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)


@pytest.mark.parametrize("name", ["causal-fused", "causal-einsum", "fused-causal", "writer"])
def test_causal_models_hold(name: str) -> None:
    held(name, assert_causal)


@pytest.mark.parametrize("name", ["fused", "zeroed-matmul", "fused-causal", "writer-padded"])
def test_models_that_ignore_padding_hold(name: str) -> None:
    held(name, assert_padding_invariant)


@pytest.mark.parametrize("name", ["fused", "packed-fused", "writer"])
def test_rows_that_are_strangers_hold(name: str) -> None:
    held(name, assert_batch_invariant)


@pytest.mark.parametrize("name", ["packed-matmul", "packed-fused"])
def test_documents_that_are_strangers_hold(name: str) -> None:
    held(name, assert_isolated_documents)


@pytest.mark.parametrize("name", ["cached-matmul", "cached-fused-rotary"])
def test_caches_that_give_what_one_pass_gives_hold(name: str) -> None:
    held(name, assert_cache_consistent)


def held(name: str, hold) -> None:
    wings = [*masks.HEALTHY, *cached.HEALTHY]
    (exhibit,) = [each for each in wings if each.name == name]
    hold(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)


def test_an_assert_that_cannot_tell_does_not_pass() -> None:
    layer, x = mh.MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
    with pytest.raises(ExamineError, match=re.escape("Facts(padding=...)")):
        assert_padding_invariant(layer, x)
    with pytest.raises(ExamineError, match="cache goes in and out"):
        assert_cache_consistent(layer, x)


def test_rings_of_ours_are_consistent_under_their_window() -> None:
    facts = Facts(causal=True, cache=CacheFacts("cache", start=lambda: mh.RingCache(3)))
    layer, x = mh.MultiHeadAttention(16, 4, rotary=mh.Rotary(4)), torch.randn(2, 9, 16)
    assert_cache_consistent(layer, x, mask=mh.Causal() & mh.Window(3), facts=facts)
    with pytest.raises(AssertionError):
        assert_cache_consistent(layer, x, mask=mh.Causal(), facts=facts)
