"""performer-pytorch and reformer-pytorch, given the same directions, queries, keys and values.

Both are older than the warnings of today's Python and torch, which are theirs to mend.
"""

import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor

import manyheads as mh

ENDS = "needs {}; ends after: pip install -c constraints.txt -e '.[peers]', as make test-long does"

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def peer(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=ENDS.format(name))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 13, 150])
@pytest.mark.parametrize("causal", [False, True])
def test_performers_estimate_is_ours_less_its_epsilon(length: int, causal: bool) -> None:
    """It adds 1e-4 to every feature, and 1e-6 to every denominator of a causal call, which pulls
    weights towards the mean of all values. Ours adds nothing; without them both are one.
    """
    peer("performer_pytorch")
    theirs = peer("performer_pytorch.performer_pytorch")
    q, k, v = torch.randn(3, 2, 3, length, 8)
    layer = theirs.FastAttention(8, nb_features=32)
    directions = layer.projection_matrix
    options = {"projection_matrix": directions, "eps": 0.0}
    made = [theirs.softmax_kernel(x, is_query=x is q, device=x.device, **options) for x in (q, k)]
    if causal:
        expected = theirs.causal_linear_attention_noncuda(*made, v, eps=0.0)
    else:
        expected = theirs.linear_attention(*made, v)
    mask = mh.Causal() if causal else None
    close(mh.performer_attention(q, k, v, mask, features=directions), expected)
    if length > 1 and not causal:
        # What its epsilon does, so that the difference is seen to be there.
        pulled = (layer(q, k, v) - expected).abs().max()
        assert 1e-5 < pulled < 0.3


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_reformers_full_attention_over_shared_keys_is_ours(causal: bool, padded: bool) -> None:
    """Its scale is head_dim ** -0.5, which ours leaves to the caller. Padding is a query there that
    sees the mean of all, and none here.
    """
    theirs = peer("reformer_pytorch.reformer_pytorch")
    q, v = torch.randn(2, 2, 21, 8)
    keep = torch.arange(21) < torch.tensor([[21], [13]])
    expected, _, _ = theirs.FullQKAttention(causal=causal)(
        q, v, input_mask=keep if padded else None
    )
    ours = attend(q, v, 32, causal, keep if padded else None)
    real = keep if padded else torch.ones_like(keep)
    close(ours[real], expected[real])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_reformers_two_chunks_see_each_other_as_our_one_bucket_does(
    causal: bool, padded: bool
) -> None:
    """Its chunks stand in a ring, through all rounds: the first of a round sees the last of the
    round before. Of one round and two chunks that is full attention. With more, a key counts once
    for each round that shows it unless told otherwise; ours has no ring and counts each key once.
    """
    theirs = peer("reformer_pytorch.reformer_pytorch")
    q, v = torch.randn(2, 2, 32, 8)
    keep = torch.arange(32) < torch.tensor([[31], [13]])
    lsh = theirs.LSHAttention(bucket_size=16, n_hashes=1, causal=causal)
    expected, _, _ = lsh(q, v, input_mask=keep if padded else None)
    ours = attend(q, v, 32, causal, keep if padded else None)
    real = keep if padded else torch.ones_like(keep)
    close(ours[real], expected[real])


def attend(q: Tensor, v: Tensor, bucket: int, causal: bool, keep: Tensor | None) -> Tensor:
    """Ours, as they call theirs: (batch, length, head_dim), the heads in the batch."""
    mask: mh.Mask | None = mh.Causal() if causal else None
    if keep is not None:
        mask = mh.Padding(keep) if mask is None else mask & mh.Padding(keep)
    shared = q[:, None]
    out = mh.lsh_attention(shared, shared, v[:, None], mask, bucket_size=bucket, scale=8**-0.5)
    return out[:, 0]
