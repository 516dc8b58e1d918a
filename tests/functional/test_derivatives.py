"""Derivatives: right by finite differences, of every order and mode where it is said."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import manyheads as mh
from manyheads.errors import BackendError

# torch's own forward mode warns of its own torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

KEEP = torch.tensor([[True, True, False, True], [False, False, False, False]])
MASKS = {
    "none": None,
    "causal": mh.Causal(),
    "padding": mh.Causal() & mh.Padding(KEEP),
    "empty rows": mh.Dense(torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()),
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()


def inputs() -> tuple[Tensor, ...]:
    q, k, v = drawn(2, 2, 3, 2), drawn(2, 1, 4, 2), drawn(2, 1, 4, 1)
    return q, k, v, drawn(1, 2, 3, 4), drawn(2)


@pytest.mark.parametrize("mask", MASKS)
def test_first_and_second_derivatives_are_right_on_the_reference(mask: str) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        return mh.attention(
            q,
            k,
            v,
            MASKS[mask],
            bias=bias,
            scale=0.8,
            softcap=1.5,
            sink_logits=sinks,
            backend="reference",
        )

    assert gradcheck(call, inputs(), check_forward_ad=True)
    assert gradgradcheck(call, inputs(), fast_mode=True)


@pytest.mark.parametrize("mask", ["none", "causal", "empty rows"])
def test_first_derivatives_are_right_on_fused(mask: str) -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mh.attention(q, k, v, MASKS[mask], backend="fused")

    assert gradcheck(call, inputs()[:3])


def test_the_lse_has_its_gradient_and_none_where_nobody_is_seen() -> None:
    def call(q: Tensor, k: Tensor) -> Tensor:
        v = k[..., :1]
        lse = mh.attention_with_lse(q, k, v, MASKS["empty rows"], backend="reference")[1]
        assert (lse == -torch.inf).any()
        return lse.masked_fill(lse == -torch.inf, 0.0)

    q, k = inputs()[:2]
    assert gradcheck(call, (q, k))
    lse = mh.attention_with_lse(q, k, k, MASKS["empty rows"])[1]
    (gradient,) = torch.autograd.grad(lse.sum(), q)
    assert gradient.isfinite().all() and (gradient[:, :, 1] == 0).all()


def test_a_bias_has_its_gradient_and_none_where_a_pair_is_hidden() -> None:
    q, k, v, bias, _ = inputs()
    out = mh.attention(q, k, v, MASKS["empty rows"], bias=bias)
    (gradient,) = torch.autograd.grad(out.square().sum(), bias)
    hidden = ~MASKS["empty rows"].tensor  # type: ignore[union-attr]
    assert (gradient[:, :, hidden] == 0).all() and (gradient[:, :, ~hidden] != 0).any()


def test_a_second_derivative_on_fused_raises_and_is_never_wrong() -> None:
    q, k, v = inputs()[:3]
    out = mh.attention(q, k, v, backend="fused")
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(first.square().sum(), q)


def test_forward_mode_on_fused_raises_and_is_never_wrong() -> None:
    q, k, v = (x.detach() for x in inputs()[:3])
    with pytest.raises(NotImplementedError, match="forward AD"):
        torch.func.jvp(lambda q: mh.attention(q, k, v, backend="fused"), (q,), (q,))


@pytest.mark.parametrize("mask", MASKS)
def test_vmap_over_queries_gives_each_call(mask: str) -> None:
    q, k, v = (x.detach() for x in inputs()[:3])
    many = torch.stack([q, 2 * q, q.flip(2)])
    found = torch.func.vmap(lambda q: mh.attention(q, k, v, MASKS[mask], backend="reference"))(many)
    right = torch.stack([mh.attention(q, k, v, MASKS[mask]) for q in many])
    torch.testing.assert_close(found, right)


def test_vmap_over_masks_and_positions_gives_each_call() -> None:
    q, k, v = (x.detach() for x in inputs()[:3])
    lengths, places = torch.tensor([[0, 4], [2, 3]]), torch.tensor([[0, 1, 2], [5, -1, 1]])

    def call(lengths: Tensor, places: Tensor) -> Tensor:
        mask = mh.Causal() & mh.Padding(lengths=lengths)
        return mh.attention(q, k, v, mask, q_pos=places, kv_pos=0, backend="reference")

    found = torch.func.vmap(call)(lengths, places)
    right = torch.stack([call(*one) for one in zip(lengths, places, strict=True)])
    torch.testing.assert_close(found, right)


def test_gradients_for_each_sample_are_those_of_the_sample_alone() -> None:
    q, k, v = (x.detach() for x in inputs()[:3])

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = mh.attention(q[None], k[None], v[None], mh.Causal(), backend="reference")
        return out.square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(q, k, v)
    right = torch.stack([torch.func.grad(loss)(*one) for one in zip(q, k, v, strict=True)])
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize(
    ("backend", "options"),
    [("chunked", {"softcap": 5.0}), ("blocks", {}), ("fused", {"sink_logits": torch.zeros(2)})],
)
def test_a_second_derivative_of_a_fast_backend_is_refused_also_of_a_sum(
    backend: str, options: dict[str, object]
) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    out = mh.attention(q, k, v, mh.Causal(), backend=backend, **options)  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(BackendError, match="a second derivative must be one of backend='refer"):
        slope.square().sum().backward()
