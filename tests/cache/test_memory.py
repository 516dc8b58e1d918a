from collections.abc import Callable

import pytest
import torch

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.errors import CacheError, OptionError

KINDS: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(400),
    "ring": lambda: mh.RingCache(50, keep_first=3),
    "int8": lambda: mh.QuantizedCache(8),
    "int4": lambda: mh.QuantizedCache(4, recent=5, group=7),
    "paged": lambda: mh.PagedCache(BlockPool(16, blocks=64)),
    "cross": mh.CrossCache,
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 37, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_promised_is_what_is_taken(kind: str, length: int, dtype: torch.dtype) -> None:
    cache = KINDS[kind]()
    shape = {"num_kv_heads": 2, "head_dim": 16, "value_dim": 9, "batch": 3}
    promised = mh.predict_bytes(cache, length, dtype=dtype, num_layers=5, **shape)
    assert cache.memory_bytes() == 0 and cache.length == 0
    cache.append(
        torch.zeros(3, 2, length, 16, dtype=dtype), torch.zeros(3, 2, length, 9, dtype=dtype)
    )
    assert promised == 5 * cache.memory_bytes()


def test_the_ways_to_keep_a_text_are_compared() -> None:
    table = mh.compare_memory(
        4096, num_layers=4, num_heads=8, head_dim=64, num_kv_heads=2, latent_dim=96, window=512
    )
    exact = 4 * 4096 * 2 * 2 * 64
    assert table["MHA"] == 8 * exact
    assert (table["GQA"], table["MQA"]) == (2 * exact, exact)
    assert table["MLA"] == 4 * 4096 * 2 * 96
    assert table["GQA, window"] == 2 * exact // 8
    assert table["GQA, int8"] <= 0.55 * table["GQA"]
    assert table["GQA, int4"] <= 0.32 * table["GQA"]
    assert str(table).splitlines()[2].split() == ["GQA", "8,388,608", "2,048", "25.0%"]
    plain = mh.compare_memory(64, num_layers=1, num_heads=2, head_dim=8)
    assert [name for name, _ in plain.rows] == ["MHA", "MQA", "MHA, int8", "MHA, int4"]


def test_what_cannot_be_promised_is_refused() -> None:
    cache = mh.GrowingCache()
    cache.append(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    with pytest.raises(CacheError, match="cache must be an empty one to predict from; got one of"):
        mh.predict_bytes(cache, 4, num_kv_heads=1, head_dim=2)
    with pytest.raises(OptionError, match="num_kv_heads must be an int of at least 1"):
        mh.predict_bytes(mh.GrowingCache(), 4, num_kv_heads=0, head_dim=2)
    with pytest.raises(CacheError, match="a FixedCache must hold all tokens of a text"):
        mh.predict_bytes(mh.FixedCache(3), 4, num_kv_heads=1, head_dim=2)
