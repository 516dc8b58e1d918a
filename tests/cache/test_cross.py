import pytest
import torch
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import CacheError

F64 = torch.float64
KEEP = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool()


@pytest.mark.parametrize("projections", ["separate", "packed"])
@pytest.mark.parametrize("again", [False, True], ids=["context once", "context each time"])
def test_steps_read_a_context_that_was_projected_once(again: bool, projections: str) -> None:
    layer = mh.MultiHeadAttention(8, 2, qk_norm="rms", projections=projections, dtype=F64)  # type: ignore[arg-type]
    x, context = torch.randn(2, 6, 8, dtype=F64), torch.randn(2, 4, 8, dtype=F64)
    whole, cache, parts = layer(x, context, mask=mh.Padding(KEEP)), mh.CrossCache(), []
    for part in x.split([2, 1, 3], 1):
        first = cache.wants_keys
        parts.append(
            layer(
                part,
                context if first or again else None,
                mask=mh.Padding(KEEP) if first else None,
                cache=cache,
            )
        )
    assert_close(torch.cat(parts, 1), whole)
    assert cache.length == 4
    assert cache.memory_bytes() == 2 * 2 * 2 * 4 * 4 * 8


def test_rotary_and_positional_masks_read_where_each_step_stands() -> None:
    layer = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64)
    x, context = torch.randn(1, 4, 8, dtype=F64), torch.randn(1, 6, 8, dtype=F64)
    mask, cache = mh.Causal() & mh.Window(3), mh.CrossCache()
    whole = layer(x, context, mask=mask, positions=2)
    for step in range(4):
        out = layer(x[:, step : step + 1], context, mask=mask, positions=2 + step, cache=cache)
        assert_close(out, whole[:, step : step + 1])


def test_beams_may_be_made_chosen_and_dropped() -> None:
    layer = mh.MultiHeadAttention(8, 2, dtype=F64)
    x, context = torch.randn(2, 1, 8, dtype=F64), torch.randn(2, 4, 8, dtype=F64)
    cache = mh.CrossCache()
    layer(x, context, mask=mh.Padding(KEEP), cache=cache)
    for rows in ([0, 0, 1, 1], [1, 0, 2, 2], [3]):
        cache.reorder(torch.tensor(rows))
    out = layer(x[:1], cache=cache)
    assert_close(out, layer(x[:1], context[1:], mask=mh.Padding(KEEP[1:])))


def test_gradients_reach_the_context_through_every_step() -> None:
    layer = mh.MultiHeadAttention(8, 2, dtype=F64)
    x = torch.randn(1, 4, 8, dtype=F64)
    context = torch.randn(1, 3, 8, dtype=F64, requires_grad=True)
    (right,) = torch.autograd.grad(layer(x, context).sum(), context)
    cache = mh.CrossCache()
    outs = [layer(part, context, cache=cache) for part in x.split(2, 1)]
    (found,) = torch.autograd.grad(torch.cat(outs, 1).sum(), context)
    assert_close(found, right)


def test_a_refused_first_call_leaves_it_empty() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2), mh.CrossCache()
    x, context = torch.randn(2, 1, 8), torch.randn(2, 4, 8)
    with pytest.raises(mh.errors.MaskError):
        layer(x, context, mask=mh.Rule(lambda head, q, kv: q, "no bool"), cache=cache)
    assert cache.wants_keys and cache.length == 0 and cache.memory_bytes() == 0


def test_what_is_refused_is_named() -> None:
    cache, k = mh.CrossCache(), torch.zeros(2, 2, 3, 4)
    with pytest.raises(CacheError, match="a CrossCache must be filled before it is read"):
        cache.reorder(torch.tensor([0]))
    cache.append(k, k)
    with pytest.raises(CacheError, match="a CrossCache must be filled once; got 3 more tokens"):
        cache.append(k, k)
    with pytest.raises(CacheError, match="a CrossCache must keep its context whole"):
        cache.rollback(1)
    first, second = mh.MultiHeadAttention(8, 2), mh.MultiHeadAttention(8, 2)
    cache = mh.CrossCache()
    first(torch.zeros(1, 1, 8), torch.zeros(1, 3, 8), cache=cache)
    with pytest.raises(CacheError, match="a cache must serve one layer"):
        second(torch.zeros(1, 1, 8), cache=cache)
