import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache import BlockPool
from manyheads.errors import CacheError, MaskError, OptionError
from manyheads.masks import Tokens

F64 = torch.float64


def paged(length: int, pool: BlockPool | None = None, batch: int = 1) -> mh.PagedCache:
    cache = mh.PagedCache(BlockPool(4) if pool is None else pool)
    k = numbers(length, batch)
    cache.append(k, -k)
    return cache


def numbers(length: int, batch: int = 1, first: int = 0) -> Tensor:
    rows = 100.0 * torch.arange(batch)[:, None] + torch.arange(first, first + length)
    return rows[:, None, :, None]


def held(cache: mh.PagedCache) -> list[list[float]]:
    found = cache.read()
    assert torch.equal(found.k, -found.v)
    return found.k[:, 0, :, 0].tolist()


def test_rows_with_one_past_share_its_blocks_and_copy_what_they_write_into() -> None:
    prompt = paged(10)  # two whole blocks, and two tokens in a third
    pool = prompt.pool
    requests = prompt.split(torch.tensor([0, 0, 0]))
    assert pool.used == 3
    assert requests.memory_bytes() == prompt.memory_bytes() == 3 * 4 * 2 * 4
    new = numbers(1, 3, first=1000)
    requests.append(new, -new)
    assert pool.used == 6  # the prompt still holds the third block, so each has a copy
    past = [float(i) for i in range(10)]
    assert held(requests) == [[*past, 1000], [*past, 1100], [*past, 1200]]
    assert held(prompt) == [past]


def test_the_last_to_write_into_a_block_keeps_it() -> None:
    cache = paged(10)
    cache.reorder(torch.tensor([0, 0]))
    assert cache.pool.used == 3
    new = numbers(3, 2, first=50)
    cache.append(new, -new)
    assert cache.pool.used == 2 + 2 + 2
    past = [float(i) for i in range(10)]
    assert held(cache) == [[*past, 50, 51, 52], [*past, 150, 151, 152]]


def test_blocks_are_free_when_nobody_holds_them() -> None:
    pool = BlockPool(4)
    cache = paged(9, pool)
    assert pool.used == 3
    cache.rollback(1)
    assert pool.used == 2
    other = cache.split(torch.tensor([0]))
    cache.rollback(8)
    assert (pool.used, cache.length) == (2, 0)
    assert held(other) == [[float(i) for i in range(8)]]
    del other
    assert pool.used == 0
    room = pool.memory_bytes()
    paged(8, pool)
    assert pool.memory_bytes() == room


def test_a_pool_that_is_full_refuses_and_changes_nothing() -> None:
    pool = BlockPool(4, blocks=3)
    cache = paged(10, pool)
    message = r"tokens must fit the pool of 3 blocks of 4; got 1 blocks more, and 0 are free"
    with pytest.raises(CacheError, match=message):
        cache.append(numbers(3), numbers(3))
    assert (pool.used, cache.length) == (3, 10)
    beams = cache.split(torch.tensor([0, 0]))
    with pytest.raises(CacheError, match="tokens must fit the pool"):  # to copy what is shared
        beams.append(numbers(1, 2), numbers(1, 2))
    assert pool.used == 3
    del beams
    more = numbers(2, first=10)
    cache.append(more, -more)
    assert held(cache) == [[float(i) for i in range(12)]]


def test_padding_before_a_row_takes_no_block() -> None:
    cache, k = mh.PagedCache(BlockPool(4)), numbers(9, 2)
    absent = torch.arange(9) < torch.tensor([[0], [8]])
    cache.append(k, -k, Tokens(9, 0, absent))
    assert cache.pool.used == 3 + 1
    assert held(cache)[1] == [0.0] * 8 + [108.0]
    short = paged(2, cache.pool)
    cache.merge(short)
    assert cache.pool.used == 5
    more = numbers(3, 3, first=500)
    cache.append(more, -more)
    assert held(cache)[2] == [0.0] * 7 + [0.0, 1.0, 700.0, 701.0, 702.0]
    assert held(short) == [[0.0, 1.0]]
    cache.rollback(11)  # before the first token of two rows
    more = numbers(6, 3, first=30)
    cache.append(more, -more)
    assert held(cache)[0] == [0.0, *(float(i) for i in range(30, 36))]


def test_caches_of_two_pools_are_merged_by_a_copy() -> None:
    one, other = paged(5), paged(6)
    one.merge(other)
    assert held(one) == [[0.0, *map(float, range(5))], [*map(float, range(6))]]
    assert (one.pool.used, other.pool.used) == (4, 2)


def test_a_call_that_fails_gives_its_blocks_back() -> None:
    layer = mh.MultiHeadAttention(8, 2, dtype=F64).requires_grad_(False)
    x, cache = torch.randn(1, 12, 8, dtype=F64), mh.PagedCache(BlockPool(4))
    layer(x[:, :6], mask=mh.Causal(), cache=cache)
    beams = cache.split(torch.tensor([0, 0]))
    bad = mh.Rule(lambda head, q, kv: q, "no bool")
    for _ in range(3):
        with pytest.raises(MaskError):
            layer(x[:, 6:].expand(2, -1, -1), mask=bad, cache=beams)
        assert (cache.pool.used, beams.length) == (2, 6)
    out = layer(x[:, 6:].expand(2, -1, -1), mask=mh.Causal(), cache=beams)
    assert_close(out[1:], layer(x, mask=mh.Causal())[:, 6:])
    del beams
    assert cache.pool.used == 2


def test_copies_live_by_themselves() -> None:
    cache = paged(6)
    beside = cache.split(torch.tensor([0, 0]))
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), copy.copy(cache)):
        more = numbers(3, first=6)
        other.append(more, -more)
        assert held(other) == [[float(i) for i in range(9)]]
        assert held(cache) == [[float(i) for i in range(6)]]
    del other, beside
    assert cache.pool.used == 2


def test_beams_take_a_fraction_of_what_copies_would() -> None:
    cache = paged(400, BlockPool(16))
    alone = cache.memory_bytes()
    cache.reorder(torch.zeros(8, dtype=torch.long))
    for step in range(8):
        cache.append(numbers(1, 8, step), -numbers(1, 8, step))
        cache.reorder(torch.tensor([0, 0, 1, 2, 3, 4, 5, 6]))
    assert cache.memory_bytes() < 1.5 * alone


def test_what_is_refused_is_named() -> None:
    for options in ({"block": 0}, {"blocks": 0}):
        with pytest.raises(OptionError, match="must be an int of at least 1"):
            BlockPool(**options)
    cache, k = paged(3), numbers(1)
    with pytest.raises(CacheError, match="a PagedCache must be filled without gradients"):
        cache.append(k.requires_grad_(), k)
    fresh = mh.PagedCache(cache.pool)
    with pytest.raises(CacheError, match="k must have the cache's batch, heads and width"):
        fresh.append(torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1, 1))
    with pytest.raises(OptionError, match="pool must be a BlockPool or None; got pool=16"):
        mh.PagedCache(16)  # type: ignore[arg-type]
    assert fresh.length == 0 and cache.length == 3
