"""Sums of the softmax are kept in fp32, so that long rows and close scores stay apart."""

import pytest
import torch
from tests.cases.exact import every_backend, every_dtype, near

import manyheads as mh

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@every_backend
@every_dtype
@pytest.mark.parametrize("kv_len", [257, 1000, 5000])
def test_a_long_row_of_equal_scores_sums_to_one(
    kv_len: int, dtype: torch.dtype, backend: str
) -> None:
    """SOFT-01: a denominator kept in bf16 stalls at 256."""
    q = torch.zeros(1, 2, 3, 4, dtype=dtype, requires_grad=True)
    k = torch.zeros(1, 2, kv_len, 4, dtype=dtype, requires_grad=True)
    v = torch.ones(1, 2, kv_len, 4, dtype=dtype, requires_grad=True)
    output = mh.attention(q, k, v, backend=backend)
    # Rounding adds up along the row, as in any sum.
    near(output, torch.ones(1, 2, 3, 4), share=max(1, kv_len / 500))
    output.sum().backward()
    # Three queries give each value a third of a thousandth each.
    torch.testing.assert_close(
        v.grad.double(), torch.full_like(v, 3 / kv_len, dtype=torch.float64), rtol=2**-7, atol=0
    )
    assert q.grad.abs().max() <= 2**-8


@every_backend
@HALVES
def test_scores_that_bf16_would_merge_stay_apart(dtype: torch.dtype, backend: str) -> None:
    """SOFT-01: scores 60, 60.125 and 60.25, which rounded to bf16 are 60, 60 and 60.25."""
    q = torch.tensor([[[[8.0, 1.0, 0.0, 0.0]]]], dtype=dtype)
    k = torch.tensor([[[[7.5, j / 8, 0.0, 0.0] for j in range(3)]]], dtype=dtype)
    v = torch.tensor([[[[1.0], [0.0], [-1.0]]]], dtype=dtype)
    output = mh.attention(q, k, v, scale=1.0, backend=backend)
    assert abs(output.item() - -0.083117051550011) <= 0.001
    _, weights = mh.attention_with_weights(q, k, v, scale=1.0)
    torch.testing.assert_close(
        weights[0, 0, 0].double(),
        torch.tensor([0.29263948459018, 0.33160397926963, 0.37575653614019], dtype=torch.float64),
        rtol=0,
        atol=torch.finfo(dtype).eps / 4,
    )


@every_backend
@every_dtype
@pytest.mark.parametrize("with_bias", [False, True])
def test_large_scores_do_not_overflow(with_bias: bool, dtype: torch.dtype, backend: str) -> None:
    """SOFT-01: scores 1000, 999 and -1000, by the keys or by a bias."""
    scores = torch.tensor([1000.0, 999.0, -1000.0])
    # Beside such a bias, fused leaves gradients to others: see functional/test_large_biases.py.
    learns = not (with_bias and backend == "fused")
    v = torch.eye(3, dtype=dtype)[None, None].requires_grad_(learns)
    if with_bias:
        q, k = torch.zeros(1, 1, 1, 4, dtype=dtype), torch.zeros(1, 1, 3, 4, dtype=dtype)
        options = {"bias": scores[None]}
    else:
        q = torch.tensor([[[[100.0, 1.0]]]], dtype=dtype)
        k = torch.tensor([[[[10.0, 0.0], [10.0, -1.0], [-10.0, 0.0]]]], dtype=dtype)
        options = {"scale": 1.0}
    output = mh.attention(q, k, v, **options, backend=backend)
    near(output[0, 0, 0], [0.73105857863, 0.26894142137, 0.0])
    if not learns:
        return
    output[..., 0].sum().backward()
    # A fused backward pass begins at the log-sum-exp, which fp32 rounds to 6e-5 near 1000.
    near(v.grad[0, 0, :, 0], [0.73105857863, 0.26894142137, 0.0], share=6)


@every_dtype
def test_fp32_at_least_is_what_scores_and_log_sum_exp_come_in(dtype: torch.dtype) -> None:
    q = torch.ones(1, 1, 2, 4, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for stage in ("raw", "capped", "masked", "softmax"):
        assert mh.attention_scores(q, q, q, stage=stage).dtype == wide
    assert mh.attention_with_lse(q, q, q)[1].dtype == wide
    assert mh.attention_with_weights(q, q, q)[1].dtype == dtype
