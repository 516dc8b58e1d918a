import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import CacheError, OptionError, PositionError

F64 = torch.float64


def test_it_holds_the_last_tokens_at_their_own_positions() -> None:
    """A chunk longer than the ring, then two short ones, then steps, worked by hand."""
    cache, k = mh.RingCache(4), torch.arange(12.0).view(1, 1, 12, 1)
    shown, held = [], []
    for part in k.split([7, 3, 1, 1], dim=2):
        shown.append(cache.append(part, -part).k.flatten().tolist())
        held.append(cache.positions.tolist())
        assert cache.read().v.flatten().tolist() == [-p for p in held[-1]]
    assert shown[1:] == [[4, 5, 6, 7, 8, 9], [7, 8, 9, 10], [8, 9, 10, 11]]
    assert held == [[3, 4, 5, 6], [6, 7, 8, 9], [7, 8, 9, 10], [8, 9, 10, 11]]


def test_first_tokens_stay() -> None:
    cache, k = mh.RingCache(3, keep_first=2), torch.arange(9.0).view(1, 1, 9, 1)
    for part in k.split([4, 3, 1, 1], dim=2):
        answer = cache.append(part, part).k.flatten().tolist()
    assert answer == [0, 1, 6, 7, 8]
    assert cache.positions.flatten().tolist() == [0, 1, 6, 7, 8]


def test_each_row_keeps_its_own_last_tokens() -> None:
    """Padding takes no place of the window."""
    cache, k = mh.RingCache(3), torch.arange(2 * 6.0).view(2, 1, 6, 1)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, -1, 2, -1, -1]])
    layer_like = mh.masks.Tokens.given("positions", positions, 2, 6, None)
    cache.append(k, k, layer_like)
    assert cache.positions.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert cache.read().k[:, 0, :, 0].tolist() == [[3, 4, 5], [6, 7, 9]]


def test_a_rollback_goes_as_far_as_it_said() -> None:
    cache, k = mh.RingCache(4, undo=3), torch.arange(20.0).view(1, 1, 20, 1)
    cache.append(k[:, :, :5], k[:, :, :5])
    assert cache.can_undo == 5  # nothing was dropped yet
    cache.append(k[:, :, 5:10], k[:, :, 5:10])
    assert cache.can_undo == 3
    cache.rollback(2)
    assert cache.positions.tolist() == [4, 5, 6, 7]
    message = r"count must be at most 1, since older .*; got count=2.* RingCache\(4, undo=2\)"
    with pytest.raises(CacheError, match=message):
        cache.rollback(2)
    cache.rollback(1)
    answer = cache.append(-k[:, :, 7:8], k[:, :, 7:8]).k.flatten().tolist()
    assert answer == [4, 5, 6, -7]
    assert cache.can_undo == 1
    cache.commit()
    assert cache.can_undo == 0
    with pytest.raises(CacheError, match="count must be at most 0"):
        cache.rollback(1)


def test_a_long_prompt_is_not_kept_alive() -> None:
    cache = mh.RingCache(8)
    long = torch.zeros(1, 2, 3000, 4)
    cache.append(long, long)
    assert cache.memory_bytes() == 2 * 2 * 8 * 4 * 4
    with torch.no_grad():
        for _ in range(100):
            cache.append(long[:, :, :1], long[:, :, :1])
            assert cache.memory_bytes() <= 2 * 2 * 14 * 4 * 4


@torch.no_grad()
def test_a_step_with_a_full_window_needs_no_mask() -> None:
    cache, k = mh.RingCache(4), torch.zeros(1, 1, 1, 2)
    for _ in range(9):
        tokens = cache.follow(1, k.device)
        bound = mh.masks.settle(mh.Causal() & mh.Window(4), 1, tokens, tokens, related=True,
                                kv_total=cache.total(1))  # fmt: skip
        held = cache.append(k, k, bound.kv)
        assert bound.with_keys(held.tokens).is_plain


def test_gradients_through_chunks_are_those_of_one_pass() -> None:
    layer = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64)
    x = torch.randn(2, 9, 8, dtype=F64, requires_grad=True)
    mask, cache = mh.Causal() & mh.Window(3), mh.RingCache(3)
    out = layer(x, mask=mask)
    weight = torch.randn_like(out)
    (right,) = torch.autograd.grad((out * weight).sum(), x)
    parts = [layer(part, mask=mask, cache=cache) for part in x.split([3, 1, 4, 1], 1)]
    (found,) = torch.autograd.grad((torch.cat(parts, 1) * weight).sum(), x)
    assert_close(found, right)


def streaming(layer: mh.MultiHeadAttention, x: Tensor, size: int, keep_first: int) -> Tensor:
    """One row as StreamingLLM has it: each query counts its keys anew, 0, 1, 2, ..."""
    rotary, outs = layer.rotary, []
    assert rotary is not None
    q, k, v = (
        p(x).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    for place in range(x.shape[1]):
        kept = [p for p in range(place + 1) if p < keep_first or p > place - size]
        turned = rotary(k[:, :, kept], 0)
        asking = rotary(q[:, :, place : place + 1], len(kept) - 1)
        scale = rotary.score_factor * layer.head_dim**-0.5
        outs.append(mh.attention(asking, turned, v[:, :, kept], scale=scale))
    return layer.out_proj(torch.cat(outs, 2).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("split", [[1] * 14, [14], [5, 4, 1, 3, 1], [2, 12]], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rotary_dim": 2},
        {"pairs": "interleaved"},
        {"scaling": mh.YaRN(4.0, original_length=8)},
    ],
    ids=str,
)
def test_positions_are_counted_in_the_cache(split: list[int], options: dict[str, object]) -> None:
    rotary = mh.Rotary(4, **options)
    layer = mh.MultiHeadAttention(8, 2, num_kv_heads=1, rotary=rotary, dtype=F64)
    x, cache = torch.randn(2, 14, 8, dtype=F64), mh.RingCache(3, keep_first=2)
    mask = mh.Causal() & (mh.Window(3) | mh.Global((0, 1)))
    parts = [layer(part, mask=mask, cache=cache) for part in x.split(split, 1)]
    assert_close(torch.cat(parts, 1), streaming(layer, x, 3, 2))


@torch.no_grad()
def test_rows_that_are_padded_count_by_themselves() -> None:
    layer = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64)
    x = torch.randn(2, 12, 8, dtype=F64)
    mask = mh.Causal() & (mh.Window(3) | mh.Global((0, 1)))
    places = torch.arange(12) - torch.tensor([[0], [4]])
    for split in ([12], [5, 1, 1, 3, 2]):
        cache = mh.RingCache(3, keep_first=2)
        parts = [
            layer(part, mask=mask, positions=at, cache=cache)
            for part, at in zip(x.split(split, 1), places.split(split, 1), strict=True)
        ]
        out = torch.cat(parts, 1)
        assert_close(out[:1], streaming(layer, x[:1], 3, 2))
        assert_close(out[1:, 4:], streaming(layer, x[1:, 4:], 3, 2))


def test_a_rotary_that_cannot_be_counted_is_refused() -> None:
    scaling = mh.DynamicNTKScaling(2.0, original_length=8)
    layer = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4, scaling=scaling))
    with pytest.raises(PositionError, match="a rotary must turn by positions alone where a Ring"):
        layer(torch.zeros(1, 2, 8), cache=mh.RingCache(4, keep_first=1))
    layer(torch.zeros(1, 2, 8), mask=mh.Causal(), cache=mh.RingCache(4))


def test_rings_of_two_sizes_are_not_merged() -> None:
    k = torch.zeros(1, 1, 3, 2)
    one, other = mh.RingCache(4), mh.RingCache(4, keep_first=1)
    one.append(k, k)
    other.append(k, k)
    with pytest.raises(CacheError, match="rings that are merged must have one size and keep_first"):
        one.merge(other)
    assert one.length == 3


@torch.no_grad()
@pytest.mark.parametrize("keep_first", [0, 2])
@pytest.mark.parametrize("lengths", [(9, 2), (2, 9), (9, 6)])
def test_rings_that_wrapped_are_merged_and_rolled_back(
    keep_first: int, lengths: tuple[int, int]
) -> None:
    layer = mh.MultiHeadAttention(8, 2, dtype=F64)
    x = torch.randn(2, 16, 8, dtype=F64)
    seen = mh.Window(3) | mh.Global(tuple(range(keep_first)))
    mask, rings = mh.Causal() & seen, []
    for row, length in enumerate(lengths):
        rings.append(mh.RingCache(3, keep_first, undo=2))
        for part in x[row : row + 1, :length].split([2, length - 2], 1):
            layer(part, mask=mask, cache=rings[-1])
    rings[0].merge(rings[1])
    for wrong in (1, 2):
        layer(torch.randn(2, wrong, 8, dtype=F64), mask=mask, cache=rings[0])
        rings[0].rollback(wrong)
    at = list(lengths)
    for width in (1, 3, 1):
        chunk = torch.stack([x[row, at[row] : at[row] + width] for row in range(2)])
        out = layer(chunk, mask=mask, cache=rings[0])
        at = [place + width for place in at]
        for row in range(2):
            whole = layer(x[row : row + 1, : at[row]], mask=mask)
            assert_close(out[row : row + 1], whole[:, -width:])


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 4, "keep_first": -1}, {"size": 2.5}])
def test_sizes_are_whole_numbers(options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="must be an int of at least"):
        mh.RingCache(**options)
    with pytest.raises(OptionError, match="undo must be an int of at least 0"):
        mh.RingCache(4, undo=-1)
