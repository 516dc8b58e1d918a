"""LSH attention is the exact softmax over the keys that its hashes show."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads as mh


def random(length: int, *, heads: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, v = torch.randn(2, 2, heads, length, 8, generator=generator, dtype=torch.float64)
    return q.requires_grad_(), v.requires_grad_()


def seen(q: Tensor, mask: mh.Mask | None, **options: object) -> Tensor:
    """Which keys each query sees, read from its weights."""
    identity = torch.eye(q.shape[2], dtype=q.dtype).expand(*q.shape[:2], -1, -1)
    generator = torch.Generator().manual_seed(1)
    return mh.lsh_attention(q, q, identity, mask, generator=generator, **options) > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("itself", ["seen", "last resort"])
@pytest.mark.parametrize(("length", "bucket_size"), [(1, 4), (7, 7), (7, 100), (33, 64)])
def test_one_bucket_is_full_attention(
    length: int, bucket_size: int, itself: str, causal: bool
) -> None:
    q, v = random(length)
    mask = mh.Causal() if causal else None
    output = mh.lsh_attention(q, q, v, mask, bucket_size=bucket_size, itself=itself)
    allowed = (mh.Causal() if causal else mh.Window(length)).dense(length).expand(2, 2, -1, -1)
    if itself == "last resort":
        others = allowed & ~torch.eye(length, dtype=torch.bool)
        allowed = torch.where(others.any(dim=-1, keepdim=True), others, allowed)
    expected = mh.attention(q, F.normalize(q, dim=-1), v, allowed, scale=1.0)
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad(output, (q, v), v.detach())
    right = torch.autograd.grad(expected, (q, v), v.detach())
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [16, 31, 64])
def test_a_key_counts_once_however_many_rounds_show_it(
    length: int, causal: bool, rounds: int
) -> None:
    q, v = random(length)
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(2)) > 0.2
    mask = mh.Padding(keep) & mh.Causal() if causal else mh.Padding(keep)
    options = {"bucket_size": 4, "rounds": rounds, "itself": "seen"}
    allowed = seen(q, mask, **options)
    output = mh.lsh_attention(
        q, q, v, mask, generator=torch.Generator().manual_seed(1), scale=0.7, **options
    )
    expected = mh.attention(q, F.normalize(q, dim=-1), v, allowed, scale=0.7)
    torch.testing.assert_close(output, expected)
    # Two chunks a round at most, itself always, and neither padding nor the future.
    count = allowed.sum(dim=-1)
    assert count.max() <= 8 * rounds
    real = keep[:, None, :].expand(-1, 2, -1)
    assert torch.equal(count > 0, real)
    assert torch.equal(allowed.diagonal(dim1=-2, dim2=-1), real)
    assert not (allowed & ~mask.dense(length, batch=2)).any()
    if rounds == 5 and length == 64:
        assert allowed.sum() > 1.5 * seen(q, mask, **options | {"rounds": 1}).sum()


def test_tokens_that_are_alike_find_each_other() -> None:
    """Sixteen directions, each held by four tokens far apart: the hash brings them together."""
    directions = F.normalize(
        torch.randn(16, 32, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    q = directions.repeat(4, 1)[None, None] * 20
    v = directions.repeat(4, 1)[None, None]
    output = mh.lsh_attention(
        q, q, v, bucket_size=8, rounds=4, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(output, v, atol=1e-3, rtol=0)


def test_a_lone_token_sees_itself() -> None:
    q, v = random(1)
    torch.testing.assert_close(mh.lsh_attention(q, q, v, mh.Causal()), v)
    q, v = random(9)
    first = mh.lsh_attention(q, q, v, mh.Causal(), bucket_size=2)[:, :, 0]
    torch.testing.assert_close(first, v[:, :, 0])


def test_a_generator_of_ones_own_leaves_torchs_alone_and_repeats() -> None:
    q, v = random(40)
    state = torch.get_rng_state()
    outputs = [
        mh.lsh_attention(
            q, q, v, bucket_size=4, rounds=1, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_very_many_buckets_are_two_hashes() -> None:
    q, v = random(1100, heads=1)
    output = mh.lsh_attention(q, q, v, mh.Causal(), bucket_size=2, rounds=2)
    assert output.isfinite().all()
    assert (seen(q, None, bucket_size=2, rounds=1).sum(dim=-1) <= 4).all()
