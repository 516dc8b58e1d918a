"""Linear attention agrees with its definition, written out pair by pair."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import OptionError, ShapeError
from manyheads.functional import FEATURES, RunningSums, linear_attention_with_state

LENGTHS = [(0, 0), (0, 3), (3, 0), (1, 1), (1, 7), (7, 7), (5, 9), (9, 5), (33, 33)]


def random(q_len: int, kv_len: int, *, heads: int = 4, kv_heads: int = 2, seed: int = 0) -> list:
    generator = torch.Generator().manual_seed(seed)
    sizes = [(heads, q_len, 6), (kv_heads, kv_len, 6), (kv_heads, kv_len, 5)]
    return [
        torch.randn(2, *size, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in sizes
    ]


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, mask: mh.Mask | None, feature: Callable[[Tensor], Tensor]
) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    products = feature(q) @ feature(k).mT
    if mask is not None:
        products = products * mask.dense(q.shape[2], k.shape[2], batch=q.shape[0])
    total = products.sum(dim=-1, keepdim=True)
    return products @ v / torch.where(total == 0, 1.0, total)


def same(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    upstream = torch.randn_like(expected)
    found_grads = torch.autograd.grad(found, inputs, upstream)
    expected_grads = torch.autograd.grad(expected, inputs, upstream)
    for ours, theirs in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "both"])
@pytest.mark.parametrize("feature", FEATURES)
def test_outputs_and_gradients_are_those_of_the_definition(
    feature: str, mask: str, q_len: int, kv_len: int
) -> None:
    q, k, v = random(q_len, kv_len)
    padding = mh.Padding(lengths=torch.tensor([kv_len, kv_len // 2]))
    masks = {"none": None, "causal": mh.Causal(), "padding": padding}
    chosen = masks.get(mask, mh.Causal() & padding)
    output = mh.linear_attention(q, k, v, chosen, feature=feature, chunk=4)
    same(output, by_definition(q, k, v, chosen, FEATURES[feature]), [q, k, v])


def test_numbers_worked_by_hand() -> None:
    """Features of q = 0 are 1; of k = 1 and 3, with elu, 2 and 4: weights 1/3 and 2/3."""
    q = torch.zeros(1, 1, 2, 1)
    k = torch.tensor([1.0, 3.0]).view(1, 1, 2, 1)
    v = torch.tensor([3.0, 6.0]).view(1, 1, 2, 1)
    assert mh.linear_attention(q, k, v).flatten().tolist() == pytest.approx([5.0, 5.0])
    causal = mh.linear_attention(q, k, v, mh.Causal())
    assert causal.flatten().tolist() == pytest.approx([3.0, 5.0])


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 100])
def test_the_chunk_is_a_matter_of_speed_alone(chunk: int) -> None:
    q, k, v = random(17, 23)
    found = mh.linear_attention(q, k, v, mh.Causal(), chunk=chunk)
    same(found, by_definition(q, k, v, mh.Causal(), FEATURES["elu"]), [q, k, v])


@pytest.mark.parametrize("sizes", [(1,) * 11, (5, 6), (4, 0, 1, 6), (10, 1)])
def test_a_state_carries_a_sequence_over_any_split(sizes: tuple[int, ...]) -> None:
    q, k, v = random(11, 11)
    keep = torch.rand(2, 11, generator=torch.Generator().manual_seed(1)) > 0.3
    whole = mh.linear_attention(q, k, v, mh.Causal() & mh.Padding(keep), chunk=3)
    parts: list[Tensor] = []
    state = None
    heads = zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True)
    for (q_, k_, v_), kept in zip(heads, keep.split(sizes, dim=1), strict=True):
        mask = mh.Causal() & mh.Padding(kept)
        output, state = linear_attention_with_state(q_, k_, v_, mask, state=state, chunk=3)
        parts.append(output)
    same(torch.cat(parts, dim=2), whole, [q, k, v])


def test_a_state_has_one_size_at_every_length_and_serves_cross_attention() -> None:
    q, k, v = random(3, 40)
    _, state = linear_attention_with_state(q[:, :, :0], k, v)
    assert state.sums.shape == (2, 2, 6, 6)
    output = mh.linear_attention(q, k[:, :, :0], v[:, :, :0], state=state)
    torch.testing.assert_close(output, mh.linear_attention(q, k, v))


def test_very_negative_keys_keep_their_features() -> None:
    # elu(x) + 1 rounds to 0 there, and a row of such keys would come out as 0.
    q, v = torch.zeros(1, 1, 1, 4), torch.ones(1, 1, 3, 2)
    k = torch.full((1, 1, 3, 4), -30.0)
    torch.testing.assert_close(mh.linear_attention(q, k, v), torch.ones(1, 1, 1, 2))


def test_a_feature_map_of_ones_own() -> None:
    q, k, v = random(5, 5)
    output = mh.linear_attention(q, k, v, feature=torch.square)
    same(output, by_definition(q, k, v, None, torch.square), [q, k, v])


def test_taylor_comes_near_softmax_where_scores_are_small() -> None:
    q, k, v = random(6, 6)
    exact, near = (
        mh.attention(q / 8, k / 8, v),
        mh.linear_attention(q / 8, k / 8, v, feature="taylor"),
    )
    assert (exact - near).abs().max() < 1e-5
    assert (exact - mh.linear_attention(q / 8, k / 8, v)).abs().max() > 1e-3


def test_mistakes_are_named_with_their_cure() -> None:
    q, k, v = random(3, 3)
    with pytest.raises(OptionError, match=r"feature must be one of elu, relu.*got feature='cos'"):
        mh.linear_attention(q, k, v, feature="cos")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="chunk must be an int of at least 1; got chunk=0"):
        mh.linear_attention(q, k, v, chunk=0)
    with pytest.raises(ShapeError, match=r"state must be .*\(2, 2, 6, 6\); got state=\(2, 2, 6, 5"):
        sums, peak = torch.zeros(2, 2, 6, 5), torch.zeros(2, 2, 1, 1)
        mh.linear_attention(q, k, v, state=RunningSums(sums, peak))
    _, state = linear_attention_with_state(q, k, v)
    with pytest.raises(ShapeError, match=r"q_len must be at most kv_len=2 .* got q_len=3"):
        mh.linear_attention(q, k[:, :, :2], v[:, :, :2], mh.Causal(), state=state)
