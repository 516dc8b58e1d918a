"""Sinusoidal positions: any width, along time, the same for every sequence."""

import math

import pytest
import torch
from tests.cases.exact import every_dtype, near

import manyheads as mh

WIDTH_5 = [
    [0, 1, 0, 1, 0],
    [0.8414709848079, 0.54030230586814, 0.025116222909774, 0.99968453791521, 0.00063095730261542],
    [0.90929742682568, -0.41614683654714, 0.050216599387465, 0.99873835069349, 0.0012619143540422],
]
WIDTH_4 = [
    [0, 1, 0, 1],
    [0.8414709848079, 0.54030230586814, 0.0099998333341667, 0.99995000041667],
    [0.90929742682568, -0.41614683654714, 0.019998666693333, 0.99980000666658],
]


@every_dtype
@pytest.mark.parametrize("rows", [WIDTH_5, WIDTH_4], ids=["odd width", "even width"])
def test_the_rows_are_those_worked_out_elsewhere(rows: list, dtype: torch.dtype) -> None:
    """SIN-01: zeros come back as the encoding, which runs along time in every sequence."""
    width = len(rows[0])
    x = torch.zeros(2, 3, width, dtype=dtype, requires_grad=True)
    encoded = mh.Sinusoidal(width)(x)
    near(encoded, [rows, rows])
    near(mh.Sinusoidal(width, dtype=dtype).table(torch.arange(3)), rows)
    upstream = torch.arange(6.0 * width).view(2, 3, width).to(dtype)
    encoded.backward(upstream)
    assert torch.equal(x.grad, upstream)


def test_the_exponent_is_not_counted_twice() -> None:
    """Row 1 would begin 0.841, 0.99995: the cosine of another wave than its sine's."""
    row = mh.Sinusoidal(4)(torch.zeros(1, 2, 4, dtype=torch.float64))[0, 1]
    near(row.view(2, 2).square().sum(-1), [1.0, 1.0])


@pytest.mark.parametrize("width", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("length", [1, 2, 33])
def test_every_width_and_length_follows_the_formula(length: int, width: int) -> None:
    expected = [
        [
            (math.cos if feature % 2 else math.sin)(
                position / 10000 ** ((feature - feature % 2) / width)
            )
            for feature in range(width)
        ]
        for position in range(length)
    ]
    near(mh.Sinusoidal(width)(torch.zeros(1, length, width, dtype=torch.float64))[0], expected)


@every_dtype
def test_far_positions_are_told_apart_in_every_dtype(dtype: torch.dtype) -> None:
    """A neighbour of ROPE-02: 256 and 257 are one number in bf16, but not one position."""
    layer = mh.Sinusoidal(8).to(dtype)
    rows = layer(torch.zeros(1, 2, 8, dtype=dtype), torch.tensor([256, 257]))[0].double()
    assert abs(rows[0, 0] - math.sin(256)) < 2**-7
    assert abs(rows[1, 0] - math.sin(257)) < 2**-7


def test_each_sequence_may_stand_elsewhere() -> None:
    layer = mh.Sinusoidal(5)
    x = torch.zeros(2, 3, 5, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    both = layer(x, positions)
    near(both[0], WIDTH_5)
    near(both[1:], layer(x[:1], 7).numpy())
