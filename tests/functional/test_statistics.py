"""Statistics equal those of the written weights, for every kind of call."""

import math

import numpy as np
import pytest
import torch
from tests.functional.largest import Largest

import manyheads as mh
from manyheads.errors import DeviceError, DTypeError, OptionError, ShapeError

Q_LEN, KV_LEN = 67, 131
KEEP = torch.arange(KV_LEN) < torch.tensor([[131], [90]])
DOCUMENTS = torch.arange(KV_LEN).div(50, rounding_mode="floor").expand(2, -1)
LEFT = torch.arange(KV_LEN) - torch.tensor([[0], [17]])

CALLS = {
    "plain": {},
    "causal after a cache": {"mask": mh.Causal()},
    "window and global": {"mask": mh.Causal() & (mh.Window(9) | mh.Global(0))},
    "both sides": {"mask": mh.Window(20)},
    "padding": {"mask": mh.Padding(KEEP)},
    "packed": {"mask": mh.Causal() & mh.Documents(DOCUMENTS)},
    "left padding": {"mask": mh.Causal(), "q_pos": LEFT[:, -Q_LEN:], "kv_pos": LEFT},
    "a run after a gap": {"mask": mh.Causal(), "q_pos": 30, "kv_pos": 5},
    "empty rows": {"mask": torch.arange(KV_LEN) < torch.arange(Q_LEN)[:, None] - 4},
    "nobody": {"mask": torch.zeros(Q_LEN, KV_LEN, dtype=torch.bool)},
    "a mask a head": {"mask": mh.PerHead((mh.Causal(), mh.Window(5), *2 * [mh.Causal()]))},
    "random blocks": {"mask": mh.RandomBlocks(2, 16, length=KV_LEN)},
    "a bias of pairs": {"bias": torch.randn(1, 4, Q_LEN, KV_LEN).double()},
    "a bias of keys": {"mask": mh.Causal(), "bias": torch.randn(2, 1, 1, KV_LEN).double()},
    "alibi": {"mask": mh.Causal(), "bias": mh.ALiBi(4)},
    "t5": {"bias": mh.T5Bias(4).double()},
    "softcap": {"mask": mh.Causal(), "softcap": 2.0},
    "sinks": {"mask": mh.Causal(), "sink_logits": torch.randn(4).double()},
    "sinks and nobody": {
        "mask": torch.zeros(Q_LEN, KV_LEN, dtype=torch.bool),
        "sink_logits": torch.randn(4).double(),
    },
    "its own scale": {"scale": 0.7},
    "turned scores": {"scale": -0.2, "mask": mh.Causal()},
}  # fmt: skip


def heads(kv_heads: int = 2) -> tuple[torch.Tensor, ...]:
    return (
        2 * torch.randn(2, 4, Q_LEN, 8).double(),
        torch.randn(2, kv_heads, KV_LEN, 8).double(),
        torch.randn(2, kv_heads, KV_LEN, 6).double(),
    )


@pytest.fixture(params=CALLS)
def case(request):
    """The statistics of a call, its weights written out, and its positions."""
    q, k, v = heads()
    options = CALLS[request.param]
    _, weights = mh.attention_with_weights(q, k, v, backend="reference", **options)
    q_pos, kv_pos = options.get("q_pos", KV_LEN - Q_LEN), options.get("kv_pos", 0)
    if isinstance(q_pos, int):
        q_pos = (q_pos + torch.arange(Q_LEN)).expand(2, -1)
        kv_pos = (kv_pos + torch.arange(KV_LEN)).expand(2, -1)
    distances = (q_pos[:, :, None] - kv_pos[:, None, :])[:, None]
    return mh.statistics(q, k, v, **options), weights, distances, (q, k, v, options)


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=0, atol=1e-10)


def test_log_sum_exp_is_that_of_attention(case):
    found, _, _, (q, k, v, options) = case
    _, lse = mh.attention_with_lse(q, k, v, backend="reference", **options)
    close(found.lse(), lse)


def test_entropy_is_that_of_keys_and_sink(case):
    found, weights, _, (*_, options) = case
    right = torch.special.entr(weights).sum(dim=-1)
    if "sink_logits" in options:
        right += torch.special.entr((1 - weights.sum(dim=-1)).clamp(min=0))
    close(found.entropy(), right)


def test_the_peak_is_the_greatest_weight_and_its_key(case):
    found, weights, *_ = case
    weight, key = weights.max(dim=-1)
    close(found.peak().weight, weight)
    assert found.peak().key.equal(key.masked_fill(weight == 0, -1))


def test_the_top_keys_are_the_greatest_weights(case):
    found, weights, *_ = case
    top = found.top(7)
    close(top.weights, weights.topk(7, dim=-1).values)
    close(top.weights, weights.gather(-1, top.keys.clamp(min=0)) * (top.keys >= 0))


@pytest.mark.parametrize("count", [1, 9, 100], ids="{} keys".format)
def test_mass_is_the_sum_of_weights_on_a_set(case, count):
    found, weights, *_ = case
    keys = torch.rand(2, KV_LEN) < count / KV_LEN
    close(found.mass(keys), (weights * keys[:, None, None]).sum(dim=-1))
    sets = torch.rand(1, KV_LEN, 3) < count / KV_LEN
    close(found.mass(sets), weights @ sets.double()[:, None])


@pytest.mark.parametrize("tokens", [0, 1, -2])
def test_mass_behind_is_on_the_key_so_many_tokens_before(case, tokens):
    found, weights, distances, _ = case
    close(found.mass_behind(tokens), (weights * (distances == tokens)).sum(dim=-1))


def test_distance_is_averaged_by_the_weights(case):
    found, weights, distances, _ = case
    close(found.distance(), (weights * distances.abs()).sum(dim=-1))


def test_received_is_the_sum_over_queries(case):
    found, weights, *_ = case
    close(found.received(), weights.sum(dim=2))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 7), (20, 16), (67, 131), (999, 999)])
def test_a_picture_pools_neighbouring_weights(case, height, width):
    found, weights, *_ = case
    height, width = min(height, Q_LEN), min(width, KV_LEN)
    rows = (torch.arange(Q_LEN) * height // Q_LEN)[:, None] == torch.arange(height)
    keys = (torch.arange(KV_LEN) * width // KV_LEN)[:, None] == torch.arange(width)
    sums = rows.double().T @ weights @ keys.double()
    close(found.pooled(height, width, "sum"), sums)
    close(found.pooled(height, width), sums / (rows.sum(0)[:, None] * keys.sum(0)))
    cells = [[weights[:, :, r][..., c].amax((2, 3)) for c in keys.T] for r in rows.T[:6]]
    greatest = torch.stack([torch.stack(row, dim=-1) for row in cells], dim=-2)
    close(found.pooled(height, width, "max")[:, :, :6], greatest)


def test_any_window_of_the_weights_is_exact(case):
    found, weights, *_ = case
    close(found.weights(), weights)
    close(found.weights(3, slice(100, 131)), weights[:, :, 3:4, 100:131])
    close(found.weights([60, 2], torch.tensor([0, 130])), weights[:, :, [60, 2]][..., [0, 130]])
    close(found.weights(torch.arange(Q_LEN) < 2), weights[:, :, :2])


def test_log_sum_exp_has_a_gradient():
    q, k, v = heads()
    q.requires_grad_()
    mh.statistics(q, k, v, mh.Causal()).lse().sum().backward()
    right = q.grad
    q.grad = None
    mh.attention_scores(q, k, v, mh.Causal()).logsumexp(dim=-1).sum().backward()
    close(right, q.grad)


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_entropy_is_right_to_a_thousandth_of_a_nat_near_collapse(size):
    q, k = size * torch.randn(1, 2, 300, 64), torch.randn(1, 2, 300, 64) + 5
    found = mh.statistics(q, k, k, mh.Causal()).entropy()
    scores = mh.attention_scores(q, k, k, mh.Causal()).double()  # rounded as in fp32
    right = torch.special.entr(scores.softmax(dim=-1)).sum(dim=-1)
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-3)
    if size == 1000.0:
        assert right.median() < 1e-3, "rows must collapse for this test to say something"


def test_a_few_rows_near_collapse_are_mended_among_many():
    q, k = torch.randn(1, 2, 90, 64), torch.randn(1, 2, 90, 64)
    q[:, :, [3, 50, 89]] *= 1000
    found = mh.statistics(q, k, k, mh.Causal()).entropy()
    scores = mh.attention_scores(q, k, k, mh.Causal()).double()
    right = torch.special.entr(scores.softmax(dim=-1)).sum(dim=-1)
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_counted_in_full(dtype):
    q, k, v = (x.to(dtype) for x in heads())
    found, right = (
        mh.statistics(*x, mh.Causal()) for x in ((q, k, v), (q.double(), k.double(), v.double()))
    )
    torch.testing.assert_close(found.entropy().double(), right.entropy(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.received().double(), right.received(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 9), (0, 4), (3, 0)])
def test_one_token_and_none_have_statistics(q_len, kv_len):
    q, k = torch.randn(1, 2, q_len, 4), torch.randn(1, 2, kv_len, 4)
    found = mh.statistics(q, k, k, mh.Causal())
    weights = mh.attention_with_weights(q, k, k, mh.Causal())[1]
    torch.testing.assert_close(found.weights(), weights)
    torch.testing.assert_close(found.received(), weights.sum(dim=2))
    torch.testing.assert_close(found.mass_behind(0).sum(), weights[..., -1:, -1:].sum())
    assert found.pooled(4, 4).shape == (1, 2, min(q_len, 4), min(kv_len, 4))


def test_absent_tokens_may_hold_nan():
    q, k, v = heads()
    spoiled = k.clone()
    spoiled[1, :, 90:] = torch.nan
    found, right = (mh.statistics(q, x, v, mh.Padding(KEEP)) for x in (spoiled, k))
    close(found.entropy(), right.entropy())
    close(found.received(), right.received())


def test_numbers_may_weigh_the_keys():
    q, k, v = heads()
    place = torch.arange(KV_LEN).double()
    _, weights = mh.attention_with_weights(q, k, v)
    close(mh.statistics(q, k, v).mass(place), weights @ place)


def test_hand_worked_numbers():
    q = torch.tensor([[[[0.0], [1.0]]]])
    k = torch.tensor([[[[0.0], [math.log(3.0)]]]])
    found = mh.statistics(q, k, k, scale=1.0)  # weights [1/2, 1/2], [1/4, 3/4]
    torch.testing.assert_close(found.lse().exp(), torch.tensor([[[2.0, 4.0]]]))
    torch.testing.assert_close(found.received(), torch.tensor([[[0.75, 1.25]]]))
    torch.testing.assert_close(found.peak().weight, torch.tensor([[[0.5, 0.75]]]))
    assert found.peak().key.tolist() == [[[0, 1]]]
    torch.testing.assert_close(found.distance(), torch.tensor([[[0.5, 0.25]]]))
    torch.testing.assert_close(found.mass_behind(0), torch.tensor([[[0.5, 0.75]]]))


def test_memory_does_not_grow_with_the_square():
    q, k, v = torch.randn(3, 1, 1, 4096, 4)
    found = mh.statistics(q, k, v, mh.Causal())
    with Largest() as most:
        found.entropy()
        found.top(3)
        found.pooled(9, 9, "max")
        found.mass(torch.arange(4096) % 2 == 0)
        found.mass_behind(1)
    assert most.numel <= 2**20 < 4096**2 / 8


def test_wrong_questions_are_refused_by_name():
    q, k, v = heads()
    found = mh.statistics(q, k, v)
    with pytest.raises(OptionError, match=r"how must be one of mean, sum, max; got how='median'"):
        found.pooled(2, 2, "median")
    with pytest.raises(OptionError, match=r"rows must lie in the 67 tokens.*got rows=67"):
        found.weights(rows=67)
    for rows in ("first", [0.5], [[0, 1]], object()):
        with pytest.raises(OptionError, match=r"rows must lie in the 67 tokens.*Give a slice"):
            found.weights(rows=rows)
    with pytest.raises(OptionError, match=r"tokens must be an int; got tokens=0\.5"):
        found.mass_behind(0.5)
    with pytest.raises(DTypeError, match=r"keys must be a torch\.Tensor; got keys=list"):
        found.mass([True] * KV_LEN)
    with pytest.raises(ShapeError, match=r"amounts must be \(batch, rows, q_len\).*\(2, 67\)"):
        found.carried(torch.ones(2, Q_LEN))
    with pytest.raises(ShapeError, match=r"keys must be \(kv_len,\).*got shape \(67,\)"):
        found.mass(torch.ones(67))
    with pytest.raises(OptionError, match="count must be an int of at least 1"):
        found.top(0)
    with pytest.raises(DeviceError, match="q must hold numbers to have statistics"):
        mh.statistics(q.to("meta"), k.to("meta"), v.to("meta"))


def test_rows_and_keys_may_be_none_at_all_or_numbers_of_numpy():
    q, k, v = heads()
    found = mh.statistics(q, k, v)
    assert found.weights(rows=[], keys=[0]).shape == (2, 4, 0, 1)
    assert torch.equal(found.weights(rows=np.int64(3)), found.weights(rows=3))
    assert torch.equal(found.mass_behind(np.int64(1)), found.mass_behind(1))


def test_a_batch_of_none_has_statistics():
    q, k, v = (x[:0] for x in heads())
    found = mh.statistics(q, k, v)
    assert found.mass_behind(1).shape == found.entropy().shape == (0, 4, Q_LEN)


@pytest.mark.parametrize("mask", [None, mh.Causal(), mh.Window(100)])
def test_positions_count_where_every_query_sees_every_key(mask: mh.Mask | None) -> None:
    q = torch.zeros(1, 1, 3, 4)
    found = mh.statistics(q, q, q, mask, q_pos=5, kv_pos=0)
    assert found.distance()[0, 0].tolist() == pytest.approx([4, 5, 6])
    assert found.mass_behind(5)[0, 0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
