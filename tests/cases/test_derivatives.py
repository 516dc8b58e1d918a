"""Derivatives of every order and mode, on the reference; other backends refuse, never err."""

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import near
from torch import Tensor

import manyheads as mh

# Forward mode loads a module of torch that is itself written with something deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

GRADIENT = [
    [-0.45339643153056, 0.09558659355232, 0.37818465900919],
    [0.0050369738082494, -0.032729768428299, -0.0076771545622351],
]
DEAD = torch.tensor([[True, True, True], [False, False, False]])
"""Lets the first query see all and the second nobody."""


def given(shape: tuple[int, ...], k: int) -> Tensor:
    return torch.from_numpy(det(shape, k))


Q, K, V = given((2, 3), 60), given((3, 3), 61), given((3, 2), 62)
UPSTREAM, TANGENT = given((2, 2), 63), given((2, 3), 64)


def f(q: Tensor, mask: Tensor | mh.Mask | None = None, backend: str = "reference") -> Tensor:
    """GRAD-01: a number, by one head of two queries over three keys."""
    q, k, v = (x[None, None] for x in (q, K, V))
    return (UPSTREAM * mh.attention(q, k, v, mask, backend=backend)[0, 0]).sum()


def penalty(q: Tensor, mask: Tensor | None = None) -> Tensor:
    return torch.func.grad(f)(q, mask).square().sum()


@pytest.mark.parametrize("backend", ["reference", "fused", "auto"])
def test_the_value_and_its_gradient(backend: str) -> None:
    near(f(Q, backend=backend), 0.238396406795)
    q = Q.clone().requires_grad_()
    f(q, backend=backend).backward()
    near(q.grad, GRADIENT)


def test_the_gradient_by_a_functional_transform() -> None:
    near(torch.func.grad(f)(Q), GRADIENT)


def test_forward_mode() -> None:
    value, directional = torch.func.jvp(f, (Q,), (TANGENT,))
    near(value, 0.238396406795)
    near(directional, 0.92976334503945)


HESSIAN_TIMES_TANGENT = [
    [-0.0047457947620267, -0.19137156325684, -0.017155472166302],
    [-0.0043157412246416, 0.011136190692964, 0.0047222257033578],
]


def test_a_hessian_product_forward_over_reverse() -> None:
    near(torch.func.jvp(torch.func.grad(f), (Q,), (TANGENT,))[1], HESSIAN_TIMES_TANGENT)


def test_a_hessian_product_reverse_over_reverse() -> None:
    q = Q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(q), q, create_graph=True)
    (product,) = torch.autograd.grad((gradient * TANGENT).sum(), q)
    near(product, HESSIAN_TIMES_TANGENT)


def test_a_gradient_penalty_can_be_trained_on() -> None:
    near(penalty(Q), 0.35888430485016)
    near(
        torch.func.grad(penalty)(Q),
        [
            [0.06389325137268, 0.031529483545583, -0.048355315419183],
            [-0.00044074443414244, 0.00094040901995462, 0.00046064861036663],
        ],
    )


@pytest.mark.parametrize("mask", [None, DEAD, mh.Causal()], ids=str)
def test_vmap_over_queries_equals_a_loop(mask: Tensor | mh.Mask | None) -> None:
    several = torch.stack((Q, TANGENT, Q + TANGENT))
    near(torch.func.vmap(lambda q: f(q, mask))(several), [f(q, mask).item() for q in several])
    gradients = torch.func.vmap(torch.func.grad(lambda q: f(q, mask)))(several)
    for q, gradient in zip(several, gradients, strict=True):
        near(gradient, torch.func.grad(lambda q: f(q, mask))(q).numpy())


def test_derivatives_of_a_row_that_sees_nobody_are_zero_in_every_order_and_mode() -> None:
    gradient = torch.func.grad(f)(Q, DEAD)
    near(gradient[0], GRADIENT[0])
    assert gradient[1].eq(0).all()
    _, product = torch.func.jvp(lambda q: torch.func.grad(f)(q, DEAD), (Q,), (TANGENT,))
    near(product[0], HESSIAN_TIMES_TANGENT[0])
    assert product[1].eq(0).all()
    second = torch.func.grad(penalty)(Q, DEAD)
    assert second.isfinite().all()
    assert second[1].eq(0).all()
    _, directional = torch.func.jvp(lambda q: f(q, DEAD), (Q,), (TANGENT,))
    near(directional, sum(a * b for a, b in zip(GRADIENT[0], TANGENT[0].tolist(), strict=True)))


def test_everything_masked_has_no_derivative_of_any_order() -> None:
    nobody = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.func.hessian(f)(Q, nobody).eq(0).all()


@pytest.mark.parametrize("mask", [None, DEAD, mh.Causal(), mh.Window(1)], ids=str)
def test_every_input_passes_gradgradcheck_in_float64(mask: Tensor | mh.Mask | None) -> None:
    inputs = [x[None, None].clone().requires_grad_() for x in (Q, K, V)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mh.attention(q, k, v, mask, backend="reference")

    assert torch.autograd.gradcheck(attend, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_a_second_derivative_of_a_fused_kernel_is_refused_not_wrong() -> None:
    q = Q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(q, backend="fused"), q, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        gradient.square().sum().backward()
