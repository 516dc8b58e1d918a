"""Masks of other libraries: what 1 means is said by the constructor's name, never guessed."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import DTypeError, MaskError, ShapeError

INF = float("inf")
LOW = torch.finfo(torch.float32).min


def padding(mask: mh.Mask) -> list[list[int]]:
    assert isinstance(mask, mh.Padding)
    assert mask.keep is not None
    return mask.keep.int().tolist()


def dense(mask: mh.Mask) -> list[object]:
    assert isinstance(mask, mh.Dense)
    return mask.tensor.int().tolist()


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([[False, False, True]]),
        torch.tensor([[0, 0, 1]]),
        torch.tensor([[0, 0, 1]], dtype=torch.uint8),
        torch.tensor([[0.0, 0.0, -INF]]),
        torch.tensor([[0.0, 0.0, LOW]]),
        torch.tensor([[0.0, -0.0, -INF]], dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_in_a_key_padding_mask_true_one_and_minus_infinity_are_padding(mask: Tensor) -> None:
    assert padding(mh.from_key_padding_mask(mask)) == [[1, 1, 0]]


@pytest.mark.parametrize(
    "mask", [torch.tensor([[True, True, False]]), torch.tensor([[1, 1, 0]])], ids=str
)
def test_in_an_attention_mask_true_and_one_are_seen(mask: Tensor) -> None:
    assert padding(mh.from_attention_mask(mask)) == [[1, 1, 0]]


@pytest.mark.parametrize(
    "mask",
    [torch.tensor([[False, True]]), torch.tensor([[0, 1]]), torch.tensor([[0.0, -INF]])],
    ids=str,
)
def test_in_an_attn_mask_true_one_and_minus_infinity_are_hidden(mask: Tensor) -> None:
    assert dense(mh.from_attn_mask(mask)) == [[1, 0]]


def test_in_a_mask_of_sdpa_true_is_seen() -> None:
    assert dense(mh.from_sdpa_mask(torch.tensor([[True, False]]))) == [[1, 0]]


def test_flat_attn_masks_put_the_sample_before_the_head() -> None:
    flat = torch.arange(6).view(6, 1, 1).expand(6, 2, 2) % 2 == 1
    mask = mh.from_attn_mask(flat, num_heads=3)
    assert isinstance(mask, mh.Dense)
    assert mask.tensor[:, :, 0, 0].int().tolist() == [[1, 0, 1], [0, 1, 0]]


def test_attention_masks_of_three_and_four_dimensions_are_written_out() -> None:
    seen = torch.tensor([[[1, 0], [1, 1]]])
    assert dense(mh.from_attention_mask(seen)) == [[[[1, 0], [1, 1]]]]
    assert dense(mh.from_attention_mask(seen[:, None].bool())) == [[[[1, 0], [1, 1]]]]
    added = torch.tensor([[[[0.0, LOW], [0.0, -INF]]]])
    assert dense(mh.from_attention_mask(added)) == [[[[1, 0], [1, 0]]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_two_lowest_numbers_added_up_still_hide(dtype: torch.dtype) -> None:
    low = torch.full((1, 1, 1, 2), torch.finfo(dtype).min, dtype=dtype)
    low[..., 0] = 0
    assert dense(mh.from_attention_mask(low + low)) == [[[[1, 0]]]]


@pytest.mark.parametrize(
    ("make", "mask", "kind", "words"),
    [
        (mh.from_key_padding_mask, torch.tensor([[0.0, 1.0]]), DTypeError, "only 0 .* and -inf"),
        (mh.from_key_padding_mask, torch.tensor([[0, 2]]), MaskError, "only 0 and 1; got values"),
        (mh.from_key_padding_mask, torch.tensor([0, 1]), ShapeError, r"\(batch, kv_len\); got"),
        (mh.from_attn_mask, torch.tensor([[0.0, -1e9]]), DTypeError, "give them as bias="),
        (mh.from_attn_mask, torch.ones(4, 3, 3).bool(), ShapeError, "num_heads=None"),
        (mh.from_attention_mask, torch.tensor([[0.0, 1.0]]), DTypeError, "convert it with .bool"),
        (mh.from_attention_mask, torch.ones(1, 1, 2, 2), DTypeError, "only 0 .* and -inf"),
        (mh.from_attention_mask, torch.tensor([[1, 2]]), MaskError, r"Documents\(ids\)"),
        (mh.from_attention_mask, torch.ones(3).bool(), ShapeError, "up to"),
        (mh.from_sdpa_mask, torch.zeros(2, 2), DTypeError, "True = may see; got mask=torch.float"),
        (mh.from_attn_mask, [[0, 1]], DTypeError, "torch.Tensor; got attn_mask=list"),
    ],
)
def test_what_has_two_meanings_is_refused(
    make: object, mask: object, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        make(mask)  # type: ignore[operator]


def test_a_flat_mask_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ShapeError, match="num_heads=3"):
        mh.from_attn_mask(torch.ones(4, 2, 2).bool(), num_heads=3)
