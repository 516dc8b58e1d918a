"""T5-01: buckets of distances in exact arithmetic, clamped above, signed, right when decoding."""

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import near

import manyheads as mh

BOTH = {
    **{0: 0, 1: 17, -1: 1, 7: 23, -7: 7, 8: 24, -8: 8, -11: 8, -12: 9, -15: 9, -16: 10, -22: 10},
    **{-23: 11, -31: 11, -32: 12, -45: 12, -46: 13, -63: 13, -64: 14, -90: 14, -91: 15, -127: 15},
    **{-128: 15, -129: 15, -100000: 15, 16: 26, 32: 28, 64: 30, 128: 31, 100000: 31},
}
PAST = {
    **{5: 0, 0: 0, -1: 1, -15: 15, -16: 16, -20: 17, -21: 18, -26: 19, -27: 20, -32: 21, -64: 26},
    **{-113: 31, -114: 31, -127: 31, -128: 31, -100000: 31},
}


@pytest.mark.parametrize(("reach", "right"), [("both", BOTH), ("past", PAST)])
def test_each_distance_falls_into_its_bucket(reach: str, right: dict[int, int]) -> None:
    bias = mh.T5Bias(1, reach=reach)
    assert bias.buckets(torch.tensor(list(right))).tolist() == list(right.values())


def test_the_buckets_of_200_distances_each_way_add_up() -> None:
    assert mh.T5Bias(1).buckets(torch.arange(-200, 201)).sum() == 8590


def test_the_first_distance_of_each_bucket() -> None:
    bucket = mh.T5Bias(1).buckets(-torch.arange(200)).tolist()
    first = [*range(9), 12, 16, 23, 32, 46, 64, 91]
    assert [bucket.index(i) for i in range(16)] == first


def test_a_decoded_row_is_the_last_row() -> None:
    bias = mh.T5Bias(2, reach="past").double()
    q, k, v = (torch.tensor(det((1, 2, 5, 4), number)) for number in (47, 48, 49))
    row = bias(q[:, :, -1:], k, 4, 0, scale=1.0)[0, :, 0]
    near(row.detach(), bias.table[[4, 3, 2, 1, 0]].T.detach().numpy())
    whole = mh.attention(q, k, v, mh.Causal(), bias=bias, scale=1.0)
    last = mh.attention(q[:, :, -1:], k, v, mh.Causal(), bias=bias, scale=1.0)
    near(last, whole[:, :, -1:].detach().numpy())


def test_scores_are_not_scaled_by_default_in_t5_and_so_the_caller_says() -> None:
    q, k, v = (torch.tensor(det((1, 1, 3, 4), number)) for number in (47, 48, 49))
    bias = mh.T5Bias(1).double()
    scores = mh.attention_scores(q, k, v, bias=bias, scale=1.0)
    relative = torch.arange(3)[None] - torch.arange(3)[:, None]
    near(
        scores[0, 0],
        (q @ k.mT)[0, 0].numpy() + bias.table[bias.buckets(relative), 0].detach().numpy(),
    )
