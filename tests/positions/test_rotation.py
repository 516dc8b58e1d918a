from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given
from hypothesis import strategies as st
from tests.positions.oracle import turned

from manyheads.errors import DeviceError, DTypeError, OptionError, ShapeError
from manyheads.positions import rotate, rotation

PAIRS = rotation.PAIRS
# torch warns of its own forward mode.
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


@pytest.fixture(params=["few calls", "few passes"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both eager paths, at any size."""
    monkeypatch.setattr(rotation, "_LARGE", 2**60 if request.param == "few calls" else 0)
    return request.param


def tables(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return angles.cos(), angles.sin()


def heads(*shape: int, **options: object) -> torch.Tensor:
    return torch.randn(shape, **{"dtype": torch.float64, **options})


def both(x: torch.Tensor, angles: torch.Tensor, pairs: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The public answer, and the readable formula's."""
    cos, sin = tables(angles)
    return rotate(x, cos, sin, pairs=pairs), rotation.rotate_by_formula(x, cos, sin, pairs=pairs)


def test_a_third_of_a_turn_by_hand(path: str) -> None:
    cos, sin = torch.tensor([[-0.5, 1.0]]), torch.tensor([[0.75**0.5, 0.0]])
    x = torch.tensor([2.0, 0.0, 4.0, 6.0]).view(1, 1, 1, 4)
    interleaved = rotate(x, cos, sin, pairs="interleaved").flatten()
    torch.testing.assert_close(interleaved, torch.tensor([-1.0, 3**0.5, 4.0, 6.0]))
    halves = rotate(x, cos, sin, pairs="halves").flatten()
    torch.testing.assert_close(halves, torch.tensor([-1 - 12**0.5, 0.0, 3**0.5 - 2, 6.0]))


@pytest.mark.parametrize("pairs", PAIRS)
@given(
    batch=st.integers(1, 3),
    count=st.integers(1, 3),
    length=st.integers(0, 5),
    half=st.integers(1, 4),
    rest=st.integers(0, 3),
)
def test_every_shape_agrees_with_numpy(
    pairs: str, batch: int, count: int, length: int, half: int, rest: int
) -> None:
    x = heads(batch, count, length, 2 * half + rest)
    positions = np.arange(length) + 3
    frequencies = torch.tensor([10000.0 ** (-2 * i / (2 * half)) for i in range(half)])
    angles = torch.from_numpy(positions).unsqueeze(-1) * frequencies.double()
    for table in (angles, angles.expand(batch, -1, -1), angles.unsqueeze(0)):
        got, formula = both(x, table, pairs)
        expected = turned(x.numpy(), positions, pairs, width=2 * half)
        np.testing.assert_allclose(got, expected, atol=1e-6)
        torch.testing.assert_close(got, formula, rtol=1e-13, atol=1e-13)
        assert torch.equal(got[..., 2 * half :], x[..., 2 * half :])


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "projection": lambda: heads(2, 5, 3, 8).transpose(1, 2),
    "packed": lambda: heads(2, 5, 3, 24).transpose(1, 2)[..., 8:16],
    "odd start": lambda: heads(2, 3, 5, 9)[..., 1:],
    "one head for all": lambda: heads(2, 1, 5, 8).expand(2, 3, 5, 8),
    "features outermost": lambda: heads(8, 2, 3, 5).permute(1, 2, 3, 0),
    "every second": lambda: heads(2, 3, 5, 16)[..., ::2],
}


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read_right_and_never_written(path: str, view: str, pairs: str) -> None:
    x = VIEWS[view]().requires_grad_()
    before, weight = x.detach().clone(), heads(2, 3, 5, 8)
    got, formula = both(x, heads(5, 4), pairs)
    torch.testing.assert_close(got, formula, rtol=1e-13, atol=1e-13)
    grads = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (got, formula)]
    torch.testing.assert_close(*grads, rtol=1e-13, atol=1e-13)
    assert torch.equal(x, before)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_dtypes_stay_within_their_rounding(path: str, dtype: torch.dtype, pairs: str) -> None:
    x = heads(2, 3, 7, 16).to(dtype).requires_grad_()
    angles = 100 * torch.rand(7, 8)
    got = rotate(x, *tables(angles), pairs=pairs)
    exact = rotation.rotate_by_formula(x.double(), *tables(angles.double()), pairs=pairs)
    weight = torch.randn_like(x)
    (grad,) = torch.autograd.grad((got * weight).sum(), x)
    (exact_grad,) = torch.autograd.grad((exact * weight.double()).sum(), x)
    assert got.dtype == grad.dtype == dtype
    # Table, product and sum round once each, relative to the length of the pair.
    tolerance = 2 * torch.finfo(dtype).eps * x.abs().max().double() + 1e-5
    assert (got.double() - exact).abs().max() <= tolerance
    assert (grad.double() - exact_grad).abs().max() <= tolerance * weight.abs().max()


@pytest.mark.parametrize("pairs", PAIRS)
def test_lengths_are_kept_and_turning_back_restores(path: str, pairs: str) -> None:
    x, angles = heads(2, 3, 5, 8), heads(2, 5, 4)
    out = rotate(x, *tables(angles), pairs=pairs)
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate(out, *tables(-angles), pairs=pairs), x)


@forward_mode
@pytest.mark.parametrize("pairs", PAIRS)
def test_derivatives_are_right_in_both_modes_and_orders(path: str, pairs: str) -> None:
    cos, sin = tables(heads(2, 3, 2))
    x = heads(2, 2, 3, 6, requires_grad=True)

    def cubed(x: torch.Tensor) -> torch.Tensor:
        return rotate(x, cos, sin, pairs=pairs) ** 3

    assert torch.autograd.gradcheck(
        cubed, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(cubed, x, check_batched_grad=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), x.detach())  # without reverse mode
        tangent = forward_ad.unpack_dual(rotate(dual, cos, sin, pairs=pairs)).tangent
    torch.testing.assert_close(tangent, rotate(x, cos, sin, pairs=pairs))


@pytest.mark.parametrize("pairs", PAIRS)
def test_tables_may_learn(path: str, pairs: str) -> None:
    x = heads(2, 2, 3, 5, requires_grad=True)
    cos, sin = (t.requires_grad_() for t in tables(heads(3, 2)))
    assert torch.autograd.gradcheck(lambda *given: rotate(*given, pairs=pairs), (x, cos, sin))
    assert torch.autograd.gradgradcheck(lambda *given: rotate(*given, pairs=pairs), (x, cos, sin))


@forward_mode
@pytest.mark.parametrize("pairs", PAIRS)
def test_the_transforms_of_torch_func_agree(path: str, pairs: str) -> None:
    cos, sin = tables(heads(4, 3, 2))
    x, weight = heads(4, 2, 3, 4), heads(4, 2, 3, 4)

    def one(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotate(x.unsqueeze(0), cos, sin, pairs=pairs)[0]

    out = rotate(x, cos, sin, pairs=pairs)
    torch.testing.assert_close(torch.vmap(one)(x, cos, sin), out)
    features_first = torch.vmap(one, in_dims=(3, 0, 0))(x.movedim(0, 3), cos, sin)
    torch.testing.assert_close(features_first, out)
    pushed = torch.func.jvp(lambda x: rotate(x, cos, sin, pairs=pairs), (x,), (weight,))[1]
    torch.testing.assert_close(pushed, rotate(weight, cos, sin, pairs=pairs))
    pulled = torch.vmap(torch.func.grad(lambda x, c, s, w: (one(x, c, s) * w).sum()))
    back = rotate(weight, cos, -sin, pairs=pairs)
    torch.testing.assert_close(pulled(x, cos, sin, weight), back)
    leaf = x.clone().requires_grad_()
    out, rows = rotate(leaf, cos, sin, pairs=pairs), torch.stack((weight, 2 * weight))
    mapped = torch.vmap(lambda row: torch.autograd.grad(out, leaf, row)[0])(rows)
    torch.testing.assert_close(mapped, torch.stack((back, 2 * back)))


@pytest.mark.parametrize("pairs", PAIRS)
def test_it_compiles_whole_and_its_gradient_too(path: str, pairs: str) -> None:
    x, (cos, sin) = heads(2, 3, 5, 8, requires_grad=True), tables(heads(5, 3))
    compiled = torch.compile(rotate, backend="aot_eager", fullgraph=True)
    weight = heads(2, 3, 5, 8)
    for function in (rotate, compiled):
        out = function(x, cos, sin, pairs=pairs)
        (grad,) = torch.autograd.grad((out * weight).sum(), x)
        torch.testing.assert_close(out, rotation.rotate_by_formula(x, cos, sin, pairs=pairs))
        torch.testing.assert_close(grad, rotate(weight, cos, -sin, pairs=pairs))


@pytest.mark.parametrize("pairs", PAIRS)
def test_gradients_keep_no_copy_of_the_features(path: str, pairs: str) -> None:
    x, (cos, sin) = heads(2, 3, 64, 8, requires_grad=True), tables(heads(64, 4))
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        rotate(x, cos, sin, pairs=pairs)
    assert kept
    assert all(t.untyped_storage().nbytes() <= 16 * cos.numel() for t in kept)


@pytest.mark.parametrize("pairs", PAIRS)
def test_a_nan_stays_in_its_pair(path: str, pairs: str) -> None:
    x = heads(1, 1, 3, 4)
    x[0, 0, 1, 0] = float("nan")
    out = rotate(x, *tables(heads(3, 2)), pairs=pairs)
    assert out.isnan().sum() == 2
    assert out[0, 0, 1].isnan().sum() == 2


@pytest.mark.parametrize("pairs", PAIRS)
def test_autocast_leaves_the_dtype_of_the_features(path: str, pairs: str) -> None:
    cos, sin = tables(torch.randn(3, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert rotate(torch.randn(1, 1, 3, 4).to(dtype), cos, sin, pairs=pairs).dtype == dtype


def refused(error: type[Exception], message: str, **changes: object) -> None:
    given = {"x": torch.zeros(2, 1, 3, 8), "cos": torch.zeros(3, 4), "sin": torch.zeros(3, 4)}
    with pytest.raises(error, match=message):
        rotate(**{**given, **changes})


def test_what_is_not_heads_of_floats_is_refused() -> None:
    message = r"^x must be \(batch, heads, length, head_dim\); got shape=\(3, 8\)\. Split the heads"
    refused(ShapeError, message, x=torch.zeros(3, 8))
    refused(
        DTypeError, r"^x must be of floats; got x=torch.int64\. ", x=torch.zeros(2, 1, 3, 8).long()
    )


def test_tables_that_do_not_fit_are_refused() -> None:
    message = r"^cos and sin must have one shape; got cos=\(3, 4\), sin=\(3, 2\)\. "
    refused(ShapeError, message, sin=torch.zeros(3, 2))
    message = r"batch=2 and length=3; got shape=\(50, 4\)\. Pick the rows .* cos\[positions\]\."
    refused(ShapeError, message, cos=torch.zeros(50, 4), sin=torch.zeros(50, 4))
    message = (
        r"^cos and sin must have 1 to 4 pairs for head_dim=8; got pairs=8\. Give one column a "
    )
    refused(ShapeError, message, cos=torch.zeros(3, 8), sin=torch.zeros(3, 8))
    refused(ShapeError, "got pairs=0", cos=torch.zeros(3, 0), sin=torch.zeros(3, 0))
    message = r"^cos must be of floats; got cos=torch.int64\. Make it in torch.float32\."
    refused(DTypeError, message, cos=torch.zeros(3, 4).long())
    message = r"^sin must be where x is, on cpu; got sin=meta\. "
    refused(DeviceError, message, sin=torch.zeros(3, 4, device="meta"))


def test_a_pair_style_must_be_one_of_two() -> None:
    message = r"^pairs must be 'halves' or 'interleaved'; got pairs='neox'\. Take the one that the"
    refused(OptionError, message, pairs="neox")
