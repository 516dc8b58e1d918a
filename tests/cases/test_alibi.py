"""ALIBI-01: slopes for any number of heads, and distances from the cached prefix."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import every_backend, every_dtype, near

import manyheads as mh
from manyheads.positions import alibi_slopes

SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: [2.0**-i for i in range(1, 9)],
    12: [*(2.0**-i for i in range(1, 9)), *(2.0 ** -(i + 0.5) for i in range(4))],
}


@pytest.mark.parametrize("num_heads", SLOPES)
def test_slopes_are_the_papers_for_any_number_of_heads(num_heads: int) -> None:
    np.testing.assert_allclose(alibi_slopes(num_heads), SLOPES[num_heads], rtol=1e-15)


def test_forty_heads_end_with_every_second_of_sixty_four() -> None:
    last = np.log2(alibi_slopes(40))[-8:]
    np.testing.assert_allclose(last, [-(i + 0.5) / 4 for i in range(8)], rtol=1e-12)


@every_backend
@every_dtype
def test_a_decoded_query_knows_how_far_it_stands(dtype: torch.dtype, backend: str) -> None:
    q, k, v = (
        torch.tensor(det((1, 1, n, 4), number), dtype=dtype)
        for n, number in ((1, 47), (5, 48), (5, 49))
    )
    bias = mh.ALiBi(1, slopes=(alibi_slopes(6)[0],))
    right = [-0.783161739027, 0.368682258264, 1.248931429522, 0.374064015935]
    for mask, places in ((None, {}), (mh.Causal(), {}), (None, {"q_pos": 4, "kv_pos": 0})):
        out = mh.attention(q, k, v, mask, bias=bias, backend=backend, **places)
        near(out[0, 0, 0], right)
    near(bias(q, k, 4, 0, scale=0.5)[0, 0, 0].to(dtype), [-1, -0.75, -0.5, -0.25, 0])
    wrong = mh.attention(q, k, v, bias=bias, q_pos=0, kv_pos=0, backend=backend)
    near(wrong[0, 0, 0], [-0.694422135901, 0.010101836352, 1.153714213689, 0.666236534983])
