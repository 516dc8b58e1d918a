"""Random features agree with the softmax in the mean, and by a stabiliser that cancels."""

import math

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_dtype, near
from torch import Tensor

import manyheads as mh
from manyheads.functional import performer_attention_with_state

D = 4
Q, K, V = det((2, D), 68), det((3, D), 69), det((3, 2), 70)
DIRECTIONS = det((16, D), 71)


def heads(x: np.ndarray, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(x, dtype=dtype)[None, None]


def estimate(stabiliser: str) -> np.ndarray:
    """LIN-02 in numpy: no maximum, one that the keys share, or (wrong) one for each key."""

    def features(x: np.ndarray, which: str) -> np.ndarray:
        x = x / D**0.25
        exponents = x @ DIRECTIONS.T - (x**2).sum(axis=-1, keepdims=True) / 2
        most = {"none": 0.0, "shared": exponents.max(), "own": exponents.max(-1, keepdims=True)}
        return np.exp(exponents - most[which])

    products = features(Q, "none") @ features(K, stabiliser).T
    return products @ V / products.sum(axis=-1, keepdims=True)


def test_the_case_is_read_as_it_was_written() -> None:
    """LIN-02: its numbers, and that the maximum of each key changes them."""
    none, own = estimate("none"), estimate("own")
    expected = [[0.547051422, 0.35431867], [0.421897744, 0.180050726]]
    np.testing.assert_allclose(none, expected, atol=1e-9)
    np.testing.assert_allclose(none, estimate("shared"), atol=1e-13)
    wrong = [[0.809632738, 0.568440847], [0.708644155, 0.403630847]]
    np.testing.assert_allclose(own, wrong, atol=1e-9)
    exact = Exact(Q[None, None], K[None, None], V[None, None], np.zeros((1, 1, 2, 2)))
    near(mh.attention(heads(Q), heads(K), heads(V)), exact.output)
    np.testing.assert_allclose(
        exact.output[0, 0], [[0.782457855, 0.67878194], [0.887243502, 0.551856718]], atol=1e-9
    )


@every_dtype
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_the_stabiliser_cancels(dtype: torch.dtype, kv_heads: int) -> None:
    """LIN-02: with fixed features and no epsilon the output is that without any maximum."""
    q, k, v = heads(Q, dtype), heads(K, dtype), heads(V, dtype)
    q, k, v = q.expand(1, 2, -1, -1), k.expand(1, kv_heads, -1, -1), v.expand(1, kv_heads, -1, -1)
    output = mh.performer_attention(q, k, v, features=torch.tensor(DIRECTIONS))
    assert output.dtype == dtype
    near(output, np.stack([estimate("none")] * 2)[None])


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_nor_does_it_change_a_causal_call(chunk: int) -> None:
    """LIN-02: there the maximum runs along the keys, so the future reaches nothing."""
    x = torch.tensor(DIRECTIONS) / 2
    q, k, v = heads(x.numpy()), heads(-2 * x.numpy()), heads(det((16, 3), 5))
    output = mh.performer_attention(q, k, v, mh.Causal(), features=x, scale=1.0, chunk=chunk)
    f_q = torch.exp(q @ x.T - q.square().sum(-1, keepdim=True) / 2)
    f_k = torch.exp(k @ x.T - k.square().sum(-1, keepdim=True) / 2)
    products = (f_q @ f_k.mT).tril()
    near(output, products @ v / products.sum(-1, keepdim=True))


def test_a_later_key_of_any_size_leaves_earlier_queries_alone() -> None:
    """LIN-02: a maximum over the whole sequence would press the earlier keys down to 0."""
    q, k, v = heads(Q, torch.float32), heads(det((2, D), 69), torch.float32), heads(V[:2])
    k = torch.cat((k[:, :, :1] * 8, k[:, :, 1:] / 8), dim=2)
    directions = torch.tensor(DIRECTIONS)
    output = mh.performer_attention(
        q, k, v.float(), mh.Causal(), features=directions, scale=1.0, chunk=1
    )
    near(output[:, :, 0], v[:, :, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_exponents_beyond_fp16_are_no_danger(dtype: torch.dtype) -> None:
    """LIN-02: exp overflows fp16 from log(65504) on, and these exponents reach it."""
    assert math.log(65504) == pytest.approx(11.0898665)
    q = k = heads(np.full((1, D), 4.0), dtype)
    v = heads(np.ones((1, 2)), dtype)
    features = torch.full((1, D), 4.0)
    exponent = (q.float() * D**-0.25) @ features.T - (q.float() ** 2).sum() * D**-0.5 / 2
    assert exponent.item() > 11.09
    near(mh.performer_attention(q, k, v, features=features), np.ones((1, 1, 1, 2)))


def features_of(x: np.ndarray, directions: Tensor) -> Tensor:
    """What the library makes of each row of x, read from what it would keep of it as a key."""
    rows = torch.tensor(x)[:, None, None]
    kept = performer_attention_with_state(rows, rows, rows, features=directions)[1]
    return (kept.sums * kept.peak.exp())[:, 0, :, -1]


def test_errors_of_the_kernel_are_those_of_the_case() -> None:
    """LIN-02: 64, 4096 and 262144 independent features, as numpy draws them."""
    rng, errors = np.random.default_rng(0), []
    for n in (64, 4096, 2**18):
        directions = torch.tensor(rng.standard_normal((n, D)))
        kernel = features_of(Q, directions) @ features_of(K, directions).T / n
        errors.append((kernel / torch.tensor(np.exp(Q @ K.T / 2)) - 1).abs().max().item())
    np.testing.assert_allclose(errors, [0.725283725, 0.750062037, 0.0283708762], atol=1e-9)


def kernel_errors(num_features: int, draws: int, share: float = 1.0) -> Tensor:
    """How far the estimates of exp(q.k / 2) lie off, as shares of it: (draws, 2, 3)."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.tensor(Q) * share, torch.tensor(K) * share
    found = []
    for _ in range(draws):
        w = mh.RandomFeatures(D, num_features, generator=generator).directions.double()
        kernel = features_of(q.numpy(), w) @ features_of(k.numpy(), w).T / num_features
        found.append(kernel / torch.exp(q @ k.T / D**0.5) - 1)
    return torch.stack(found)


def test_the_kernel_is_unbiased() -> None:
    """LIN-02: in the mean over draws each pair's estimate is exact, within four deviations."""
    errors = kernel_errors(16, 500, share=0.25)
    bound = 4 * errors.std(dim=0) / math.sqrt(len(errors))
    assert (errors.mean(dim=0).abs() < bound).all()
    assert bound.max() < 0.05


def test_large_norms_make_it_useless_and_the_features_say_so() -> None:
    """LIN-02: off by 0.7 with 64 features and no better with 4096, though unbiased."""
    q, k = heads(Q), heads(K)
    few, many = (mh.RandomFeatures(D, n).expected_error(q, k) for n in (64, 2**18))
    assert few > 1
    assert few / many == pytest.approx(64)
    assert mh.RandomFeatures(D, 4096).expected_error(q / 4, k / 4) < 0.1
    assert kernel_errors(64, 20).abs().amax() > 0.3
    assert kernel_errors(2**18, 1).abs().amax() < 0.3


def test_more_features_come_nearer_to_the_softmax() -> None:
    """LIN-02: the estimate converges to exact attention."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = heads(Q / 2), heads(K / 2), heads(V)
    exact, errors = mh.attention(q, k, v), []
    for num_features in (64, 4096, 2**18):
        features = mh.RandomFeatures(D, num_features, generator=generator)
        error = mh.performer_attention(q, k, v, features=features) - exact
        errors.append(error.abs().max().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01
