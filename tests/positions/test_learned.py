import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import DeviceError, DTypeError, OptionError, PositionError, ShapeError
from manyheads.positions import Learned


def numbered(max_length: int, width: int) -> Learned:
    """A table whose row p holds the number p + 1."""
    layer = Learned(max_length, width, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(1.0, max_length + 1).unsqueeze(-1).expand_as(layer.weight))
    return layer


def test_each_token_gets_the_vector_of_its_position() -> None:
    x = torch.zeros(1, 3, 2, dtype=torch.float64)
    layer = numbered(6, 2)
    assert layer(x)[0, :, 0].tolist() == [1, 2, 3]
    assert layer(x, 2)[0, :, 1].tolist() == [3, 4, 5]
    assert layer(x, torch.tensor([5, 0, 5]))[0, :, 0].tolist() == [6, 1, 6]
    assert layer(x, torch.tensor([[5, 0, 5]], dtype=torch.int16))[0, :, 0].tolist() == [6, 1, 6]


def test_where_there_is_no_token_nothing_is_added_and_nothing_learns() -> None:
    layer = numbered(4, 2)
    x = torch.zeros(2, 3, 2, dtype=torch.float64)
    out = layer(x, torch.tensor([[-1, 0, 1], [0, 1, -7]]))
    assert out[..., 0].tolist() == [[0, 1, 2], [1, 2, 0]]
    out.sum().backward()
    assert layer.weight.grad[:, 0].tolist() == [2, 2, 0, 0]
    assert layer(x, -1)[0, :, 0].tolist() == [0, 1, 2]


def test_a_spoilt_first_row_does_not_reach_absent_tokens() -> None:
    layer = numbered(4, 2)
    with torch.no_grad():
        layer.weight[0] = float("nan")
    out = layer(torch.zeros(1, 2, 2, dtype=torch.float64), torch.tensor([-1, 1]))
    assert out[0, :, 0].tolist() == [0, 2]


@given(st.integers(0, 5), st.integers(0, 6))
def test_a_run_equals_the_same_positions_one_by_one(start: int, length: int) -> None:
    layer, x = Learned(11, 3), torch.randn(2, length, 3)
    one_by_one = torch.arange(start, start + length)
    assert torch.equal(layer(x, start), layer(x, one_by_one))
    grads = [
        torch.autograd.grad(layer(x, p).square().sum(), layer.weight)[0]
        for p in (start, one_by_one)
    ]
    torch.testing.assert_close(*grads)


def test_gradients_are_right_to_the_second_order() -> None:
    layer = Learned(5, 3, dtype=torch.float64)
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def cubed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        at = torch.tensor([[0, -1, 4], [2, 2, 1]])
        return torch.func.functional_call(layer, {"weight": weight}, (x, at)) ** 3

    assert torch.autograd.gradcheck(cubed, (x, layer.weight))
    assert torch.autograd.gradgradcheck(cubed, (x, layer.weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_answer_has_the_dtype_of_the_stream(dtype: torch.dtype) -> None:
    assert Learned(4, 2)(torch.zeros(1, 3, 2, dtype=dtype)).dtype == dtype
    assert Learned(4, 2, dtype=dtype).weight.dtype == dtype


def test_the_table_starts_small_and_seeded() -> None:
    torch.manual_seed(1)
    first = Learned(512, 64).weight
    torch.manual_seed(1)
    assert torch.equal(first, Learned(512, 64).weight)
    assert first.std().item() == pytest.approx(0.02, rel=0.05)


def test_it_survives_copies_and_a_meta_device() -> None:
    source = Learned(4, 2)
    layer = Learned(4, 2, device="meta").to_empty(device="cpu")
    layer.load_state_dict(source.state_dict(), strict=True)
    x = torch.randn(1, 3, 2)
    for other in (layer, copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert torch.equal(other(x, 1), source(x, 1))


def test_it_compiles_whole_exports_and_maps() -> None:
    layer, x = Learned(64, 5), torch.randn(2, 3, 5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for positions in (None, 4, torch.tensor([2, -1, 7])):
        torch.testing.assert_close(compiled(x, positions), layer(x, positions))
    length = torch.export.Dim("length", min=2, max=32)
    exported = torch.export.export(layer, (x,), dynamic_shapes={"x": {1: length}}, strict=False)
    longer = torch.randn(2, 9, 5)
    torch.testing.assert_close(exported.module()(longer), layer(longer))
    at = torch.tensor([[0, 1, -1], [7, 8, 9]])
    mapped = torch.vmap(lambda x, at: layer(x.unsqueeze(0), at)[0])(x, at)
    torch.testing.assert_close(mapped, layer(x, at))


@pytest.mark.parametrize("positions", [None, 2, torch.tensor([0, 1, 4]), torch.tensor([[4, 0, 0]])])
def test_a_position_past_the_table_is_refused_with_the_cure(positions: object) -> None:
    layer = Learned(4 if positions is not None else 2, 2)
    message = rf"^positions must stay below max_length={layer.max_length}; got positions="
    with pytest.raises(PositionError, match=message + r"\d\. Build a longer table, shorten the"):
        layer(torch.zeros(1, 3, 2), positions)


def test_the_last_position_of_the_table_is_allowed() -> None:
    assert Learned(4, 2)(torch.zeros(1, 3, 2), 1).shape == (1, 3, 2)
    assert Learned(4, 2)(torch.zeros(1, 0, 2)).shape == (1, 0, 2)
    assert Learned(4, 2).table(torch.empty(0).long()).shape == (0, 2)


def test_what_is_not_a_stream_or_not_positions_is_refused() -> None:
    layer = Learned(4, 2)
    with pytest.raises(ShapeError, match=r"^x must be .* d_model=2; got shape=\(1, 3, 3\)\. "):
        layer(torch.zeros(1, 3, 3))
    with pytest.raises(DTypeError, match=r"^x must be of floats; got x=torch.int64\. "):
        layer(torch.zeros(1, 3, 2).long())
    with pytest.raises(PositionError, match=r"^positions must be integers; got "):
        layer(torch.zeros(1, 3, 2), torch.zeros(3))
    with pytest.raises(PositionError, match=r"^positions must be integers; got "):
        layer.table(torch.zeros(3))
    with pytest.raises(DeviceError, match=r"^positions must be where x is, on cpu; "):
        layer(torch.zeros(1, 3, 2), torch.arange(3, device="meta"))


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0), (2.5, 2), (2, "4")])
def test_sizes_must_be_counts(sizes: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match=r"^(max_length|d_model) must be an int of at least 1; "):
        Learned(*sizes)


def test_it_prints_what_it_is() -> None:
    assert repr(Learned(7, 2)) == "Learned(7, 2)"
