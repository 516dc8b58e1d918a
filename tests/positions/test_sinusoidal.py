import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.positions.oracle import attended, det, sinusoid

from manyheads.errors import DeviceError, DTypeError, OptionError, PositionError, ShapeError
from manyheads.positions import Sinusoidal


def encoding(length: int, width: int, **options: object) -> torch.Tensor:
    return Sinusoidal(width, dtype=torch.float64, **options).table(torch.arange(length))


def test_an_odd_width_ends_with_a_sine() -> None:
    by_hand = [
        [0, 1, 0, 1, 0],
        [0.841470985, 0.540302306, 0.0251162229, 0.999684538, 0.000630957303],
        [0.909297427, -0.416146837, 0.0502165994, 0.998738351, 0.00126191435],
    ]
    np.testing.assert_allclose(encoding(3, 5), by_hand, rtol=1e-8)


def test_the_exponent_counts_pairs_once() -> None:
    # 10000 ** (-2 / 4) = 0.01; doubling the index would give 0.0001.
    np.testing.assert_allclose(encoding(2, 4)[1, 2], np.sin(0.01), rtol=1e-12)


def test_every_sequence_of_a_batch_reads_time_and_not_its_row() -> None:
    out = Sinusoidal(5)(torch.zeros(2, 3, 5))
    assert torch.equal(out[0], out[1])
    assert not torch.equal(out[0, 0], out[0, 1])


@given(st.integers(1, 33), st.lists(st.integers(0, 10**6), min_size=1, max_size=9))
def test_any_width_and_position_is_what_the_paper_says(width: int, positions: list[int]) -> None:
    layer = Sinusoidal(width, base=500.0, dtype=torch.float64)
    expected = sinusoid(positions, width, base=500.0)
    np.testing.assert_allclose(layer.table(torch.tensor(positions)), expected, atol=1e-8)


def test_in_float32_an_angle_is_off_by_its_rounding_alone() -> None:
    positions = torch.tensor([0, 257, 4095, 15962, 10**6])
    got = Sinusoidal(64, dtype=torch.float32).table(positions).numpy()
    error = np.abs(got - sinusoid(positions, 64)).max(axis=-1)
    assert (error <= positions.numpy() * 2.0**-23 + 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_round_once_and_at_the_end(dtype: torch.dtype) -> None:
    positions = torch.tensor([[256, 257, 4095]])
    got = Sinusoidal(8)(torch.zeros(1, 3, 8, dtype=dtype), positions)
    expected = Sinusoidal(8, dtype=torch.float32).table(positions)
    assert got.dtype == dtype
    assert torch.equal(got, expected.to(dtype))


def test_casting_the_module_changes_no_number() -> None:
    x = torch.zeros(1, 300, 16)
    assert torch.equal(Sinusoidal(16).to(torch.bfloat16)(x), Sinusoidal(16)(x))


def test_none_an_int_and_tensors_say_the_same_thing() -> None:
    layer, x = Sinusoidal(6), torch.randn(2, 4, 6)
    run = torch.arange(4)
    assert torch.equal(layer(x), layer(x, run))
    assert torch.equal(layer(x, 3), layer(x, run + 3))
    assert torch.equal(layer(x, 3), layer(x, (run + 3).expand(2, 4)))
    assert torch.equal(layer(x, 3), layer(x, (run + 3).to(torch.int16)))


def test_where_there_is_no_token_the_stream_stays_as_it_is() -> None:
    layer, x = Sinusoidal(6), torch.randn(2, 4, 6)
    out = layer(x, torch.tensor([[-1, -1, 0, 1], [0, 1, 2, 3]]))
    assert torch.equal(out[0, :2], x[0, :2])
    assert torch.equal(out[0, 2:], layer(x[:1, 2:])[0])
    assert torch.equal(layer(x, -2), layer(x, torch.tensor([-2, -1, 0, 1])))


def test_a_left_padded_row_equals_the_row_alone() -> None:
    short = det(3, 4, k=26)
    by_hand = [0.619369576, 1.41194551, 0.372318566, 1.81551224]
    np.testing.assert_allclose(attended(short + sinusoid(range(3), 4))[-1], by_hand, rtol=1e-8)

    padded = torch.zeros(2, 5, 4, dtype=torch.float64)
    padded[0, 2:] = torch.from_numpy(short)
    positions = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    row = Sinusoidal(4)(padded, positions)[0, 2:]
    np.testing.assert_allclose(attended(row.numpy())[-1], by_hand, rtol=1e-8)


@pytest.mark.parametrize("length", [0, 1])
def test_length_zero_and_one_work(length: int) -> None:
    x = torch.randn(2, length, 3)
    assert Sinusoidal(3)(x).shape == x.shape


def test_the_gradient_passes_untouched() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Sinusoidal(5), x)
    (grad,) = torch.autograd.grad(Sinusoidal(5)(x).sum(), x)
    assert torch.equal(grad, torch.ones_like(x))


def test_nothing_is_stored_so_nothing_can_be_spoilt() -> None:
    x = torch.randn(1, 3, 4)
    layer = Sinusoidal(4, device="meta")
    layer.to_empty(device="cpu").load_state_dict({}, strict=True)
    assert torch.equal(layer(x), Sinusoidal(4)(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


def test_it_compiles_whole_exports_and_maps() -> None:
    layer, x = Sinusoidal(5), torch.randn(2, 3, 5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for positions in (None, 4, torch.tensor([2, -1, 7])):
        torch.testing.assert_close(compiled(x, positions), layer(x, positions))
    length = torch.export.Dim("length", min=2, max=64)
    exported = torch.export.export(layer, (x,), dynamic_shapes={"x": {1: length}}, strict=False)
    longer = torch.randn(2, 9, 5)
    torch.testing.assert_close(exported.module()(longer), layer(longer))
    torch.testing.assert_close(torch.vmap(layer)(x.unsqueeze(1)), layer(x).unsqueeze(1))


def test_it_prints_what_it_is() -> None:
    assert repr(Sinusoidal(5)) == "Sinusoidal(5, base=10000)"


@pytest.mark.parametrize("width", [0, -2, 2.0, True])
def test_a_width_must_be_a_count(width: object) -> None:
    with pytest.raises(OptionError, match=rf"^d_model must be an int .*; got d_model={width}\. "):
        Sinusoidal(width)


@pytest.mark.parametrize("base", [0.5, -1, float("inf"), float("nan"), "1e4", True])
def test_a_base_must_be_finite_and_at_least_one(base: object) -> None:
    message = f"^base must be a finite number of at least 1; got base={base!r}. Usual are 10000.0"
    with pytest.raises(OptionError, match=message):
        Sinusoidal(4, base=base)


def test_a_dtype_must_be_of_floats() -> None:
    with pytest.raises(DTypeError, match=r"^dtype must be of floats; got dtype=torch.int64\. "):
        Sinusoidal(4, dtype=torch.int64)


def test_a_stream_must_have_three_axes_and_its_width() -> None:
    message = r"^x must be \(batch, length, d_model\) with d_model=4; got shape=\(3, 4\)\. Add a"
    with pytest.raises(ShapeError, match=message):
        Sinusoidal(4)(torch.zeros(3, 4))
    with pytest.raises(ShapeError, match=r"got shape=\(1, 3, 5\)\. "):
        Sinusoidal(4)(torch.zeros(1, 3, 5))


def test_a_stream_must_be_of_floats() -> None:
    with pytest.raises(DTypeError, match=r"^x must be of floats; got x=torch.int64\. Embed "):
        Sinusoidal(4)(torch.zeros(1, 3, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.zeros(3), r"^positions must be integers; got positions=torch.float32\. "),
        (torch.ones(3, dtype=torch.bool), r"^positions must be integers; got .*torch.bool\. "),
        (torch.arange(4), r"^positions must be \(length,\) or .*\(2, 3\); got shape \(4,\)\. "),
        (torch.zeros(3, 2).long(), r"got shape \(3, 2\)\. Give each token of the call its "),
        (torch.tensor(1), r"got shape \(\)\. "),
        (1.5, r"^positions must be None, an int or an integer tensor; got positions=1.5\. "),
        (True, r"got positions=True\. An int is the first position of a run\."),
    ],
)
def test_positions_must_be_one_integer_a_token(positions: object, message: str) -> None:
    with pytest.raises(PositionError, match=message):
        Sinusoidal(4)(torch.zeros(2, 3, 4), positions)


def test_positions_must_live_where_the_stream_does() -> None:
    message = r"^positions must be where x is, on cpu; got positions=meta\. Move it first"
    with pytest.raises(DeviceError, match=message):
        Sinusoidal(4)(torch.zeros(2, 3, 4), torch.arange(3, device="meta"))


def test_a_table_is_of_tensors_of_one_or_two_axes() -> None:
    with pytest.raises(DTypeError, match=r"^positions must be a torch.Tensor; got positions=int"):
        Sinusoidal(4).table(3)
    with pytest.raises(PositionError, match=r"got shape \(1, 1, 2\)\. "):
        Sinusoidal(4).table(torch.zeros(1, 1, 2).long())
