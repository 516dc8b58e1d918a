"""Biases of NaN, of inf and of numbers beside which scores vanish: none reaches who sees it not."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import BackendError
from manyheads.functional import Auto

LENGTH = 150
LOWEST = torch.finfo(torch.float32).min


def drawn(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (1, 2, LENGTH, 8)
    made = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(3))
    return [x.to(dtype).requires_grad_() for x in made]


def answers(bias: Tensor, mask: mh.Mask | None, backend: str, dtype: torch.dtype) -> list[Tensor]:
    leaves = drawn(dtype)
    output = mh.attention(*leaves, mask, bias=bias.to(dtype), backend=backend)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return [output, *torch.autograd.grad((output * weight).sum(), leaves)]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [1, LENGTH])
@pytest.mark.parametrize("backend", ["auto", "fused", "chunked", "reference"])
def test_what_a_bias_says_of_a_later_key_reaches_no_earlier_row(
    number: float, rows: int, backend: str
) -> None:
    q, k, v = (x.detach() for x in drawn())
    bias = torch.zeros(1, 1, rows, LENGTH)
    bias[..., 60] = number
    out = mh.attention(q, k, v, mh.Causal(), bias=bias, backend=backend)
    right = mh.attention(q, k, v, mh.Causal(), backend=backend)
    torch.testing.assert_close(out[:, :, :60], right[:, :, :60])
    assert out[:, :, 60:].isnan().all()


@pytest.mark.parametrize("number", [LOWEST, 2.0**40])
@pytest.mark.parametrize("rows", [1, LENGTH])
@pytest.mark.parametrize("mask", [None, mh.Causal()], ids=repr)
@pytest.mark.parametrize("backend", ["auto", "chunked"])
def test_rows_that_see_large_numbers_only_have_their_gradients(
    number: float, rows: int, mask: mh.Mask | None, backend: str
) -> None:
    bias = torch.zeros(1, 1, rows, LENGTH)
    if rows == 1:
        bias[..., : LENGTH // 2] = number  # under causality the first rows see nothing else
    else:
        bias[:, :, 3:40] = number
    # Numbers so large that no score beside them leaves a trace, in float64 neither.
    found = answers(bias, mask, backend, torch.float32)
    right = answers(bias * 2.0**60 if number > 0 else bias, mask, "reference", torch.float64)
    for ours, exact in zip(found, right, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


def test_the_fused_kernel_refuses_them_by_name_where_gradients_are_asked_for() -> None:
    bias = torch.zeros(1, 1, LENGTH, LENGTH)
    bias[:, :, 3] = LOWEST
    with pytest.raises(
        BackendError, match=r"wrong beside a bias beyond 128\. Either say by a mask"
    ):
        answers(bias, None, "fused", torch.float32)
    q, k, v = (x.detach() for x in drawn())
    assert mh.explain(q, k, v, bias=bias, verbose=False).chosen == "fused"
    padding = torch.zeros(1, 1, 1, LENGTH)
    padding[..., 100:] = LOWEST  # every row sees others too
    assert mh.explain(*drawn(), bias=padding, verbose=False).chosen == "fused"
    hiding = padding.masked_fill(padding == LOWEST, -torch.inf)
    assert mh.explain(*drawn(), mh.Causal(), bias=hiding, verbose=False).chosen == "fused"


def test_causality_stays_with_the_kernel_beside_a_bias_of_numbers() -> None:
    q = torch.zeros(1, 2, LENGTH, 8)
    bias = torch.zeros(1, 1, 1, LENGTH)
    bias[..., 100:] = -torch.inf
    strict = Auto(never_quadratic=True)
    table = mh.explain(q, q, q, mh.Causal(), bias=bias, backend=strict, verbose=False)
    assert table.chosen == "fused"
    bias[..., 0] = float("nan")  # whom it hides must be written out, or left out by pieces
    table = mh.explain(q, q, q, mh.Causal(), bias=bias, backend=strict, verbose=False)
    assert table.chosen == "chunked"
