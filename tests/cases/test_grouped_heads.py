"""Query head h reads kv head h // group: neighbours share, nothing is tiled."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near

import manyheads as mh
from manyheads.errors import ShapeError


def case(heads: int, kv_heads: int, *, batch: int = 1, length: int = 3, width: int = 2) -> Exact:
    """GQA-01: four query heads over two kv heads, three tokens of width 2."""
    many, few = (batch, heads, length, width), (batch, kv_heads, length, width)
    allow = np.tri(length, dtype=bool)
    return Exact(det(many, 38), det(few, 39), det(few, 40), det(many, 97), allow=allow)


@every_backend
@every_dtype
@pytest.mark.parametrize(
    ("heads", "kv_heads", "batch", "length", "width"),
    [(4, 2, 1, 3, 2), (4, 1, 1, 3, 2), (4, 4, 1, 3, 2), (6, 2, 2, 5, 4), (6, 3, 3, 1, 8)],
)
def test_neighbouring_heads_share_keys_and_values(
    heads: int, kv_heads: int, batch: int, length: int, width: int, dtype: torch.dtype, backend: str
) -> None:
    exact = case(heads, kv_heads, batch=batch, length=length, width=width)
    exact.agrees(dtype, backend, mh.Causal())


@every_backend
def test_the_numbers_are_those_worked_out_elsewhere(backend: str) -> None:
    q, k, v = (
        torch.from_numpy(det((1, heads, 3, 2), number))
        for heads, number in ((4, 38), (2, 39), (2, 40))
    )
    output = mh.attention(q, k, v, mh.Causal(), backend=backend)[0]
    near(
        output[1],
        [
            [-0.125, 1.625],
            [0.81256247453568, -0.33535790130188],
            [0.15832995983827, 1.2308640711912],
        ],
    )
    near(
        output[2],
        [
            [1.75, -1.5],
            [1.5231127749135, -0.81933832474037],
            [-0.39547345694818, -0.66085100997696],
        ],
    )
    # The signature of tiling: heads 1 and 2 exchange their keys, the first and last stay right.
    tiled = mh.attention(q, k.tile(1, 2, 1, 1), v.tile(1, 2, 1, 1), mh.Causal(), backend=backend)[0]
    near(
        tiled[1],
        [[1.75, -1.5], [1.2104862355945, 0.11854129321646], [1.4113374052631, -0.71387292575718]],
    )
    near(tiled[[0, 3]], output[[0, 3]])

    one = mh.attention(q, k[:, :1], v[:, :1], mh.Causal(), backend=backend)[0]
    near(
        one[3],
        [[-0.125, 1.625], [1.2150321337518, -1.176885370572], [1.0998887426783, -0.59047872822452]],
    )


@every_backend
@pytest.mark.parametrize("mask", [None, mh.Causal(), mh.PerHead((mh.Causal(), mh.Window(1)) * 3)])
def test_grouped_heads_equal_the_same_keys_repeated(mask: mh.Mask | None, backend: str) -> None:
    q, k, v = (
        torch.from_numpy(det((2, heads, 5, 4), number))
        for heads, number in ((6, 38), (2, 39), (2, 40))
    )
    repeated = (x.repeat_interleave(3, dim=1) for x in (k, v))
    near(mh.attention(q, k, v, mask, backend=backend), mh.attention(q, *repeated, mask))


@every_backend
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 3), (2, 4), (3, 2)])
def test_a_number_of_heads_that_does_not_divide_is_refused(
    heads: int, kv_heads: int, backend: str
) -> None:
    q, k = torch.zeros(1, heads, 3, 2), torch.zeros(1, kv_heads, 3, 2)
    with pytest.raises(ShapeError, match=f"num_heads={heads}, num_kv_heads={kv_heads}"):
        mh.attention(q, k, k, backend=backend)


def test_the_heads_axis_is_never_taken_for_the_length() -> None:
    q, k = torch.zeros(1, 4, 3, 2), torch.zeros(1, 3, 2, 2)  # (batch, length, heads, head_dim)
    with pytest.raises(ShapeError, match=r"\.transpose\(1, 2\)"):
        mh.attention(q, k, k)
