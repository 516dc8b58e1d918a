import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache import Cache
from manyheads.errors import CacheError, MaskError, OptionError
from manyheads.masks import Tokens

F64 = torch.float64


def heads(length: int, batch: int = 2, width: int = 3, **options: object) -> Tensor:
    return torch.randn(batch, 2, length, width, **options)


def grown(*lengths: int) -> tuple[mh.GrowingCache, Tensor]:
    cache, k = mh.GrowingCache(), heads(sum(lengths))
    for part in k.split(lengths, dim=2):
        cache.append(part, -part)
    return cache, k


def held(cache: mh.GrowingCache) -> Tensor:
    batch = 2 if cache._k is None else cache._k.shape[0]
    return cache.append(heads(0, batch), heads(0, batch)).k


@torch.no_grad()
@pytest.mark.parametrize("kind", [mh.GrowingCache, lambda: mh.QuantizedCache(4), mh.PagedCache])
def test_it_prints_what_it_holds(kind: Callable[[], Cache]) -> None:
    cache = kind()
    assert repr(cache) == f"{type(cache).__name__}(0 tokens, 0 bytes)"
    cache.append(heads(100), heads(100))
    assert repr(cache) == f"{type(cache).__name__}(100 tokens, {cache.memory_bytes():,} bytes)"


@torch.no_grad()
def test_it_gives_back_all_that_it_was_given() -> None:
    cache, k = grown(3, 0, 1, 4, 1)
    assert torch.equal(held(cache), k)
    assert cache.length == 9
    assert cache.positions.tolist() == list(range(9))


@torch.no_grad()
def test_what_it_answered_before_does_not_change() -> None:
    cache, answers = mh.GrowingCache(), []
    for step in range(12):
        part = heads(1)
        answers.append(cache.append(part, part).k)
        if step == 6:
            cache.rollback(3)
        if step == 8:
            cache.reorder(torch.tensor([1, 0]))
        answers.append(answers[-1].clone())
    for answer, copied in zip(answers[::2], answers[1::2], strict=True):
        assert torch.equal(answer, copied)


@torch.no_grad()
def test_a_step_seldom_copies_the_past() -> None:
    cache, _ = grown(4)
    places = {cache.append(heads(1), heads(1)).k.data_ptr() for _ in range(200)}
    assert len(places) < 15


@torch.no_grad()
def test_memory_is_counted_with_its_spare_room() -> None:
    cache = mh.GrowingCache()
    assert cache.memory_bytes() == 0
    cache.append(heads(4), heads(4, width=5))
    assert cache.memory_bytes() == 2 * 2 * 4 * (3 + 5) * 4
    cache.append(heads(2), heads(2, width=5))
    assert cache.memory_bytes() == 2 * 2 * (6 + 3) * (3 + 5) * 4


@torch.no_grad()
def test_keys_of_the_caller_are_never_written_over() -> None:
    k = heads(4)
    before, cache = k.clone(), mh.GrowingCache()
    cache.append(k[:, :, :2], k[:, :, :2])
    cache.append(heads(1), heads(1))
    cache.rollback(2)
    cache.append(heads(2), heads(2))
    assert torch.equal(k, before)


@pytest.mark.parametrize("frozen", [False, True], ids=["all learn", "only queries learn"])
def test_gradients_through_chunks_are_those_of_one_pass(frozen: bool) -> None:
    layer = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64)
    if frozen:
        layer.requires_grad_(False).q_proj.requires_grad_(True)
    x = torch.randn(2, 7, 8, dtype=F64, requires_grad=not frozen)
    wanted = [p for p in (*layer.parameters(), x) if p.requires_grad]
    out = layer(x, mask=mh.Causal())
    weight = torch.randn_like(out)
    gradients = torch.autograd.grad((out * weight).sum(), wanted)
    cache = mh.GrowingCache()
    parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([3, 1, 2, 1], 1)]
    chunked = torch.autograd.grad((torch.cat(parts, 1) * weight).sum(), wanted)
    assert_close(chunked, gradients)


def test_it_is_passed_from_inference_to_training_and_back() -> None:
    layer, x = mh.MultiHeadAttention(8, 2, dtype=F64), torch.randn(2, 8, 8, dtype=F64)
    whole, cache, parts = layer(x, mask=mh.Causal()), mh.GrowingCache(), []
    modes = (torch.inference_mode, torch.enable_grad, torch.no_grad, torch.inference_mode)
    for mode, part in zip(modes * 2, x.split(1, 1), strict=True):
        with mode():
            keep = torch.ones(2, 1, dtype=torch.bool)
            parts.append(layer(part, mask=mh.Causal() & mh.Padding(keep), cache=cache))
    assert_close(torch.cat([part.detach().clone() for part in parts], 1), whole)
    parts[5].sum().backward()
    assert layer.q_proj.weight.grad is not None
    cache.reorder(torch.tensor([1]))
    cache.rollback(2)
    assert_close(layer(x[1:, 6:], mask=mh.Causal(), cache=cache), whole[1:, 6:])


@torch.no_grad()
def test_copies_live_by_themselves() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2), mh.GrowingCache()
    x = torch.randn(1, 4, 8)
    layer(x[:, :3], mask=mh.Causal(), cache=cache)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        out = copy.deepcopy(layer)(x[:, 3:], mask=mh.Causal(), cache=other)
        assert_close(out, layer(x, mask=mh.Causal())[:, 3:])
        assert (cache.length, other.length) == (3, 4)


@torch.no_grad()
def test_a_shallow_copy_goes_its_own_way() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2, dtype=F64), mh.GrowingCache()
    x = torch.randn(1, 7, 8, dtype=F64)
    for i in range(4):
        layer(x[:, i : i + 1], mask=mh.Causal(), cache=cache)
    other = copy.copy(cache)
    layer(x[:, 4:5], mask=mh.Causal(), cache=cache)
    layer(x[:, 6:], mask=mh.Causal(), cache=other)  # was written where the other has its newest
    out = layer(x[:, 5:6], mask=mh.Causal(), cache=cache)
    assert_close(out, layer(x[:, :6], mask=mh.Causal())[:, 5:])


@torch.no_grad()
def test_positions_go_on_from_wherever_they_were() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64), mh.GrowingCache()
    x = torch.randn(1, 6, 8, dtype=F64)
    places = torch.tensor([4, 5, 9, 2, 10, 11])  # ahead, back, then on after the greatest
    parts = [layer(x[:, :2], mask=mh.Causal(), positions=4, cache=cache)]
    parts.append(layer(x[:, 2:4], mask=mh.Causal(), positions=places[2:4], cache=cache))
    parts.append(layer(x[:, 4:], mask=mh.Causal(), cache=cache))
    assert cache.positions.flatten().tolist() == places.tolist()
    # Keys that come later are not seen by queries that went before them.
    whole = layer(x, mask=mh.Causal(), positions=places)
    assert_close(torch.cat(parts[1:], 1), whole[:, 2:])
    assert_close(parts[0], layer(x[:, :2], mask=mh.Causal(), positions=4))


@torch.no_grad()
def test_a_call_that_fails_leaves_no_trace() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2), mh.GrowingCache()
    x = torch.randn(2, 4, 8)
    bad = {
        "too few heads, seen late": {"mask": mh.PerHead((mh.Causal(),))},
        "a rule that fails": {"mask": mh.Rule(lambda head, q, kv: q, "no bool")},
        "the new keys alone": {"mask": torch.ones(4, 3, dtype=torch.bool)},
    }
    for filled in (False, True):
        before = (cache.length, cache.memory_bytes())
        for options in bad.values():
            with pytest.raises(MaskError):
                layer(x, cache=cache, **options)
            assert (cache.length, cache.memory_bytes()) == before
        if not filled:
            layer(x, mask=mh.Causal(), cache=cache)
    with pytest.raises((CacheError, mh.errors.ManyheadsError)):
        layer(x[:1], mask=mh.Causal(), cache=cache)
    more = torch.randn(2, 1, 8)
    out = layer(more, mask=mh.Causal(), cache=cache)
    assert_close(out, layer(torch.cat((x, more), 1), mask=mh.Causal())[:, 4:])


@torch.no_grad()
def test_documents_are_told_of_all_chunks_or_of_none() -> None:
    ids, x = torch.zeros(2, 2, dtype=torch.long), torch.randn(2, 2, 8)
    layer, message = mh.MultiHeadAttention(8, 2), r"Add Documents\(\.\.\.\) to the mask of every"
    for first, then in ((None, mh.Documents(ids)), (mh.Documents(ids), mh.Causal())):
        cache = mh.GrowingCache()
        layer(x, mask=first, cache=cache)
        with pytest.raises(MaskError, match=message):
            layer(x, mask=then, cache=cache)
        assert cache.length == 2
    twice = mh.GrowingCache()
    layer(x, mask=mh.Documents(ids) & mh.Documents(ids + 1), cache=twice)
    with pytest.raises(MaskError, match=message):
        layer(x, mask=mh.Causal(), cache=twice)


@torch.no_grad()
def test_one_cache_serves_one_layer() -> None:
    first, second, x = mh.MultiHeadAttention(8, 2), mh.MultiHeadAttention(8, 2), torch.ones(1, 2, 8)
    cache = mh.GrowingCache()
    first(x, cache=cache)
    with pytest.raises(CacheError, match="a cache must serve one layer"):
        second(x, cache=cache)
    assert cache.length == 2
    first(x, cache=cache)
    cache.rollback(4)
    second(x, cache=cache)  # empty, it may change hands


def test_what_is_refused_is_named() -> None:
    cache, k = mh.GrowingCache(), heads(3)
    with pytest.raises(CacheError, match="must hold tokens before its rows can be reordered"):
        cache.reorder(torch.tensor([0]))
    cache.append(k, k)
    with pytest.raises(CacheError, match="count must be at most the 3 tokens that are held; got c"):
        cache.rollback(4)
    with pytest.raises(OptionError, match="count must be an int of at least 0"):
        cache.rollback(-1)
    with pytest.raises(CacheError, match=r"index must name rows 0 to 1; got index=\[2\]"):
        cache.reorder(torch.tensor([2]))
    with pytest.raises(CacheError, match=r"index must be integers \(batch,\); got torch.bool"):
        cache.reorder(torch.tensor([True, False]))
    with pytest.raises(CacheError, match="index must be integers"):
        cache.reorder([0, 1])  # type: ignore[arg-type]
    with pytest.raises(CacheError, match=r"k must have the cache's batch, heads and width \(2, 2"):
        cache.append(k[:1], k[:1])
    with pytest.raises(CacheError, match="v must have the cache's dtype and device"):
        cache.append(k, k.double())
    with pytest.raises(CacheError, match=r"k and v must be .* of the same 2 tokens"):
        cache.append(k, k, Tokens(2, 3))


@pytest.mark.filterwarnings("ignore")
def test_a_step_compiles_without_a_break() -> None:
    layer, x = mh.MultiHeadAttention(8, 2, dtype=F64).eval(), torch.randn(1, 4, 8, dtype=F64)
    cache = mh.GrowingCache()

    @torch.compile(fullgraph=True, backend="eager")
    def step(part: Tensor) -> Tensor:
        return layer(part, mask=mh.Causal(), cache=cache)

    with torch.no_grad():
        parts = [step(part) for part in x.split(2, 1)]
    assert_close(torch.cat(parts, 1), layer(x, mask=mh.Causal()))
