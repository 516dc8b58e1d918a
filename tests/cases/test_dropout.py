"""Dropout falls on the weights, draws only where it is asked for, and is not what is returned."""

from collections.abc import Callable

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near

import manyheads as mh

PATHS = {
    **{
        name: lambda *qkv, name=name, **options: mh.attention(*qkv, backend=name, **options)
        for name in ("fused", "chunked", "reference")
    },
    "with weights": lambda *qkv, **options: mh.attention_with_weights(*qkv, **options)[0],
    "with lse": lambda *qkv, **options: mh.attention_with_lse(*qkv, **options)[0],
}
every_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


def case() -> Exact:
    """DROP-01: two queries and three keys of width 4."""
    q, k, v = det((1, 1, 2, 4), 50), det((1, 1, 3, 4), 51), det((1, 1, 3, 4), 52)
    return Exact(q, k, v, det((1, 1, 2, 4), 97))


@every_backend
@every_dtype
def test_without_dropout_the_output_is_exact(dtype: torch.dtype, backend: str) -> None:
    case().agrees(dtype, backend, dropout=0.0)


@every_path
@every_dtype
def test_without_dropout_nothing_is_drawn_and_nothing_varies(
    path: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    exact = case()
    q, k, v = (torch.tensor(x, dtype=dtype) for x in (exact.q, exact.k, exact.v))
    before = torch.get_rng_state()
    first, second = path(q, k, v), path(q, k, v)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    near(
        first[0, 0],
        [
            [-0.9250337398054, -0.15644093202347, -0.62803766047156, -0.67876805763537],
            [1.2762119497888, -1.1647150932646, 0.44020687718612, 0.10687627168963],
        ],
    )


ROWS = 10_000


def equal_scores(**options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """DROP-02: ten thousand rows of four equal scores over the values 1, 2, 4 and 8."""
    q, k = torch.zeros(1, 1, ROWS, 2), torch.zeros(1, 1, 4, 2)
    v = torch.tensor([[[[1.0], [2.0], [4.0], [8.0]]]])
    return mh.attention_with_weights(q, k, v, **options)


def test_returned_weights_are_those_before_dropout() -> None:
    _, weights = equal_scores(dropout=0.5)
    assert weights.eq(0.25).all()
    near(weights.sum(-1), torch.ones(1, 1, ROWS))


def test_dropout_keeps_the_mean_and_has_the_variance_of_dropped_weights() -> None:
    output = equal_scores(dropout=0.5)[0].flatten()
    assert abs(output.mean() - 3.75) < 0.1
    assert abs(output.var() - 5.3125) < 0.3
    # Each weight is dropped or doubled: outputs are sums of a half of some of the values.
    assert set(output.unique().tolist()) == {sum_ / 2 for sum_ in range(16)}


@pytest.mark.parametrize("dropout", [0.1, 0.9])
def test_the_share_that_is_dropped_is_the_share_that_was_asked_for(dropout: float) -> None:
    output = equal_scores(dropout=dropout)[0].flatten()
    whole = output.eq(0).double().mean()
    assert abs(whole - dropout**4) < 0.02
    assert abs(output.mean() - 3.75) < 0.4


def test_draws_follow_torch_s_generator() -> None:
    torch.manual_seed(7)
    first = equal_scores(dropout=0.5)[0]
    second = equal_scores(dropout=0.5)[0]
    torch.manual_seed(7)
    assert torch.equal(first, equal_scores(dropout=0.5)[0])
    assert not torch.equal(first, second)


def test_dropout_reaches_the_gradient_by_the_weights_that_were_kept() -> None:
    q, k = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 64, 2)
    v = torch.ones(1, 1, 64, 1, requires_grad=True)
    output = mh.attention(q, k, v, dropout=0.5)
    output.sum().backward()
    kept = v.grad.flatten()
    assert set(kept.tolist()) == {0.0, 2 / 64}
    near(output.flatten(), kept.sum()[None])


def trained_layer(**options: float) -> mh.EncoderLayer:
    return mh.EncoderLayer(8, 2, 16, dtype=torch.float64, **options)


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"dropout": 0.0, "attention_dropout": 0.5}])
def test_a_layer_draws_in_training_and_never_in_evaluation(options: dict) -> None:
    layer, x = trained_layer(**options), torch.randn(2, 5, 8, dtype=torch.float64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    before = torch.get_rng_state()
    first, second = layer(x), layer(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    plain = trained_layer(dropout=0.0)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(first, plain(x))


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"output_dropout": 0.5}])
def test_the_weights_of_a_layer_in_training_are_those_before_dropout(options: dict) -> None:
    layer = mh.MultiHeadAttention(8, 2, dtype=torch.float64, **options)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    out, weights = layer.with_weights(x, mask=mh.Causal())
    near(weights.sum(-1), torch.ones(2, 2, 5))
    evaluated, same = layer.eval().with_weights(x, mask=mh.Causal())
    near(weights, same.detach().numpy())
    assert not torch.allclose(out, evaluated)
