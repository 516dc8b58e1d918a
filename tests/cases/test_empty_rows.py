"""A query that sees nobody gives 0, and gradients that are finite and 0, on every path."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near
from torch import Tensor

import manyheads as mh

ALLOW = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])


def middle_row_empty(shape: tuple[int, ...] = (1, 1, 3, 2), allow: Tensor = ALLOW) -> Exact:
    """MASK-04: three tokens of width 2; the second sees nobody."""
    q, k, v, upstream = (det(shape, number) for number in (10, 11, 12, 13))
    return Exact(q, k, v, upstream, allow=allow.numpy())


def added(allow: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(allow.shape, dtype=dtype).masked_fill(~allow, -torch.inf)


WAYS = {
    "a bool mask": lambda allow, dtype: {"mask": allow},
    "a bias of minus infinity": lambda allow, dtype: {"bias": added(allow, dtype)},
    "torch's float mask": lambda allow, dtype: {"mask": mh.from_attn_mask(added(allow, dtype))},
    "the mask of the mask": lambda allow, dtype: {"mask": ~mh.Dense(~allow)},
    "both": lambda allow, dtype: {"mask": allow, "bias": added(allow, dtype)},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_backend
@every_dtype
@every_way
def test_an_empty_row_gives_nothing_and_takes_no_gradient(
    way: Callable[..., Any], dtype: torch.dtype, backend: str
) -> None:
    middle_row_empty().agrees(dtype, backend, **way(ALLOW, dtype))


@every_backend
@every_dtype
@every_way
@pytest.mark.parametrize(
    "blocked",
    [(slice(None), 1), (1,), (slice(None),), (slice(None), slice(None), slice(0, 3))],
    ids=["a head", "a sample", "everything", "the first rows"],
)
def test_so_it_is_where_more_than_a_row_is_blocked(
    blocked: tuple, way: Callable[..., Any], dtype: torch.dtype, backend: str
) -> None:
    allow = torch.ones(2, 2, 5, 5, dtype=torch.bool).tril()
    allow[blocked] = False
    middle_row_empty((2, 2, 5, 4), allow).agrees(dtype, backend, **way(allow, dtype))


def leaves(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [
        torch.tensor(det((1, 1, 3, 2), number), dtype=dtype, requires_grad=True)
        for number in (10, 11, 12)
    ]


@every_backend
def test_the_numbers_are_those_worked_out_elsewhere(backend: str) -> None:
    q, k, v = leaves()
    output = mh.attention(q, k, v, ALLOW, backend=backend)
    output.backward(torch.from_numpy(det((1, 1, 3, 2), 13)))
    near(
        output[0, 0],
        [[-1.3206391946422, 1.2826314093762], [0, 0], [-0.75812406698247, 0.21336251765582]],
    )
    near(
        q.grad[0, 0],
        [[-0.041775662360546, 0.083551324721091], [0, 0], [0.75908303205976, 1.2145328512956]],
    )
    near(
        k.grad[0, 0],
        [
            [-0.58485927304764, 0.54308361068709],
            [-0.62967357824798, 1.4305322726683],
            [1.2145328512956, -1.9736158833554],
        ],
    )
    near(
        v.grad[0, 0],
        [
            [0.68481181205514, 0.98917261741298],
            [-0.81561471704262, 1.8079100939087],
            [-0.61919709501252, 0.57791728867835],
        ],
    )


@every_backend
@every_dtype
def test_zeros_are_zeros_and_not_merely_small(dtype: torch.dtype, backend: str) -> None:
    q, k, v = leaves(dtype)
    output = mh.attention(q, k, v, ALLOW, backend=backend)
    output.sum().backward()
    assert output[0, 0, 1].eq(0).all()
    assert q.grad[0, 0, 1].eq(0).all()


@every_dtype
def test_the_weights_of_an_empty_row_have_gradient_zero(dtype: torch.dtype) -> None:
    q, k, v = leaves(dtype)
    _, weights = mh.attention_with_weights(q, k, v, ALLOW)
    assert weights[0, 0, 1].eq(0).all()
    weights.backward(torch.tensor(det((1, 1, 3, 3), 14), dtype=dtype))
    assert q.grad[0, 0, 1].eq(0).all()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


@every_dtype
def test_the_log_sum_exp_of_an_empty_row_has_gradient_zero(dtype: torch.dtype) -> None:
    exact = middle_row_empty()
    q, k, v = leaves(dtype)
    _, lse = mh.attention_with_lse(q, k, v, ALLOW)
    near(lse, exact.lse.squeeze(-1))
    lse.sum().backward()
    near(q.grad, exact.weights @ exact.k * 2**-0.5)
    near(k.grad, exact.weights.mT @ exact.q * 2**-0.5)


@every_backend
@every_dtype
@pytest.mark.parametrize("mask", [ALLOW, mh.Causal(), ~mh.Causal()], ids=str)
def test_the_log_sum_exp_without_gradient_is_the_same_by_every_backend(
    mask: Tensor | mh.Mask, dtype: torch.dtype, backend: str
) -> None:
    q, k, v = (x.detach() for x in leaves(dtype))
    allow = mask if isinstance(mask, Tensor) else mask.dense(3)[0, 0]
    output, lse = mh.attention_with_lse(q, k, v, mask, backend=backend)
    exact = middle_row_empty(allow=allow)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    near(lse, exact.lse.squeeze(-1))
    near(output, exact.output)


@every_backend
@every_dtype
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_nobody_is_there_to_see_reaches_nothing(
    bad: float, dtype: torch.dtype, backend: str
) -> None:
    """A neighbour of MASK-04: a whole sample of padding, filled with NaN or infinity."""
    exact = middle_row_empty(
        (2, 2, 5, 4), torch.tensor([5, 0])[:, None, None, None] > torch.arange(5)
    )
    q, k, v = (torch.tensor(x, dtype=dtype) for x in (exact.q, exact.k, exact.v))
    k[1], v[1] = bad, bad
    for x in (q, k, v):
        x.requires_grad_()
    output = mh.attention(q, k, v, mh.Padding(lengths=torch.tensor([5, 0])), backend=backend)
    output.backward(torch.tensor(exact.upstream, dtype=dtype))
    near(output, exact.output)
    for x, expected in zip((q, k, v), exact.gradients, strict=True):
        near(x.grad, expected)
