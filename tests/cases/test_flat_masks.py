"""A mask of shape (batch * heads, q_len, kv_len) reaches the sample and head it was made for."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near
from torch import Tensor

import manyheads as mh
from manyheads.errors import MaskError, ShapeError


def lengths_mask(lengths: list[int], length: int) -> Tensor:
    """bool (batch, length, length), True = hidden, as nn.MultiheadAttention reads it."""
    hidden = torch.arange(length) >= torch.tensor(lengths)[:, None]
    return hidden[:, None].expand(-1, length, -1)


def case(batch: int, heads: int, length: int, width: int, allow: np.ndarray) -> Exact:
    shape = (batch, heads, length, width)
    return Exact(det(shape, 7), det(shape, 8), det(shape, 9), det(shape, 97), allow=allow)


@every_backend
@every_dtype
@pytest.mark.parametrize(
    ("lengths", "heads", "length"), [([3, 1], 2, 3), ([2, 5, 1], 4, 5), ([4], 3, 4)]
)
def test_each_sample_keeps_its_own_mask(
    lengths: list[int], heads: int, length: int, dtype: torch.dtype, backend: str
) -> None:
    """MASK-03: sample b's head h stands at b * heads + h, so each sample's mask is repeated."""
    hidden = lengths_mask(lengths, length)
    mask = mh.from_attn_mask(hidden.repeat_interleave(heads, 0), num_heads=heads)
    allow = ~hidden[:, None].numpy()
    case(len(lengths), heads, length, 2, allow).agrees(dtype, backend, mask)


@every_backend
def test_masks_that_differ_by_head_reach_their_head(backend: str) -> None:
    batch, heads, length = 3, 2, 5
    hidden = det((batch * heads, length, length), 70) > 0.5
    hidden[..., 0] = False
    mask = mh.from_attn_mask(torch.from_numpy(hidden), num_heads=heads)
    allow = ~hidden.reshape(batch, heads, length, length)
    case(batch, heads, length, 2, allow).agrees(torch.float64, backend, mask)


@every_backend
def test_the_numbers_are_those_worked_out_elsewhere(backend: str) -> None:
    q, k, v = (torch.from_numpy(det((2, 2, 3, 2), number)) for number in (7, 8, 9))
    hidden = lengths_mask([3, 1], 3)

    def attend(flat: Tensor) -> Tensor:
        return mh.attention(q, k, v, mh.from_attn_mask(flat, num_heads=2), backend=backend)

    right = attend(hidden.repeat_interleave(2, 0))
    near(
        right[0, 1],
        [
            [0.024685148518394, -0.46342169721728],
            [0.16948999150216, -0.40901801110855],
            [1.4113374052631, -0.71387292575718],
        ],
    )
    near(right[1, 0], [[0.75, 0.25]] * 3)
    # What the usual mistake gives, for whoever looks for its signature.
    tiled = attend(hidden.tile(2, 1, 1))
    near(tiled[0, 1], [[1.75, -1.5]] * 3)


def test_a_flat_mask_needs_the_number_of_heads() -> None:
    flat = lengths_mask([3, 1], 3).repeat_interleave(2, 0)
    with pytest.raises(ShapeError, match="num_heads=None"):
        mh.from_attn_mask(flat)
    with pytest.raises(ShapeError, match="num_heads=3"):
        mh.from_attn_mask(flat, num_heads=3)


def test_three_dimensions_are_refused_where_they_could_mean_two_things() -> None:
    q = torch.zeros(2, 2, 3, 2)
    with pytest.raises(MaskError, match=r"mask\[:, None\]"):
        mh.attention(q, q, q, ~lengths_mask([3, 1], 3))
    with pytest.raises(ShapeError, match=r"bias\[None\] or bias\[:, None\]"):
        mh.attention(q, q, q, bias=torch.zeros(2, 3, 3))


@every_backend
@every_dtype
def test_a_sample_alone_equals_itself_among_its_neighbours(
    dtype: torch.dtype, backend: str
) -> None:
    lengths = torch.tensor([3, 1, 4, 2])
    shape = (4, 2, 4, 8)
    q, k, v = (torch.tensor(det(shape, number), dtype=dtype) for number in (7, 8, 9))
    together = mh.attention(q, k, v, mh.Padding(lengths=lengths), backend=backend)
    for b, length in enumerate(lengths.tolist()):
        alone = mh.attention(
            q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length], backend=backend
        )
        near(together[b], alone[0].double())
