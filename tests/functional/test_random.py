"""Dropout, and the random state that a call leaves behind."""

import pytest
import torch

import manyheads as mh


def test_dropout_keeps_the_mean_and_has_the_variance_of_inverted_dropout() -> None:
    """DROP-02: a quarter of 1, 2, 4 and 8 each, half of them dropped."""
    draws = 10_000
    v = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64).view(1, 1, 4, 1)
    q = torch.zeros(1, 1, draws, 1, dtype=torch.float64)
    out = mh.attention(q, torch.zeros(1, 1, 4, 1, dtype=torch.float64), v, dropout=0.5)
    assert float(out.mean()) == pytest.approx(3.75, abs=0.1)
    assert float(out.var()) == pytest.approx(5.3125, rel=0.05)


def test_weights_are_those_before_dropout_and_the_output_is_after_it() -> None:
    q, k, v = torch.zeros(1, 1, 64, 2), torch.zeros(1, 1, 4, 2), torch.eye(4)[None, None]
    out, weights = mh.attention_with_weights(q, k, v, dropout=0.5)
    assert (weights == 0.25).all()
    assert set(out.unique().tolist()) == {0.0, 0.5}


def test_a_seed_makes_dropout_repeatable() -> None:
    q = torch.randn(1, 2, 5, 4)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(mh.attention(q, q, q, dropout=0.5))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("backend", ["reference", "fused", "chunked"])
def test_a_call_without_dropout_draws_nothing(backend: str) -> None:
    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    before = torch.get_rng_state()
    mh.attention(q, q, q, mh.Causal(), backend=backend).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
