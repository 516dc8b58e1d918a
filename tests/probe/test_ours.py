"""Our own layers are watched on their seam: with masks, biases and every cache."""

import pytest
import torch
from torch import nn

import manyheads as mh


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=0, atol=1e-6)


def test_a_layer_is_seen_as_it_says_itself():
    layer = mh.MultiHeadAttention(32, 4, num_kv_heads=2, rotary=mh.Rotary(8)).eval()
    x = torch.randn(2, 13, 32)
    out, weights = layer.with_weights(x, mask=mh.Causal() & mh.Window(5))
    with mh.probe.watch(layer) as calls:
        again = layer(x, mask=mh.Causal() & mh.Window(5))
    close(again, out)
    assert [call.source for call in calls] == ["manyheads"]
    close(calls[0].weights(), weights)
    close(calls[0].entropy(), torch.special.entr(weights).sum(dim=-1))
    assert calls[0].output.shape == (2, 4, 13, 8)


CACHES = {
    "growing": lambda: mh.GrowingCache(),
    "fixed": lambda: mh.FixedCache(32),
    "ring": lambda: mh.RingCache(6),
    "quantized": lambda: mh.QuantizedCache(),
    "paged": lambda: mh.PagedCache(),
}


@pytest.mark.parametrize("kind", CACHES)
def test_each_step_with_a_cache_is_seen_and_stays_as_it_was(kind):
    layer = mh.MultiHeadAttention(64, 2, num_kv_heads=1, rotary=mh.Rotary(32)).eval()
    x = torch.randn(2, 13, 64)
    mask = mh.Causal() & mh.Window(6)
    steps = [(0, 5), (5, 6), (6, 7), (7, 13)]
    cache, expected = CACHES[kind](), []
    with torch.no_grad():
        for first, last in steps:
            expected.append(layer.with_weights(x[:, first:last], mask=mask, cache=cache)[1])
        cache = CACHES[kind]()
        with mh.probe.watch(layer) as calls:
            for first, last in steps:
                layer(x[:, first:last], mask=mask, cache=cache)
    assert len(calls) == len(steps)
    for call, right in zip(calls, expected, strict=True):  # read after all steps were taken
        close(call.weights(), right)
        close(call.entropy(), torch.special.entr(right).sum(dim=-1))
        assert call.mass_behind(0).min() > 0


def test_a_bias_that_reads_positions_is_seen():
    layer = mh.MultiHeadAttention(32, 4).eval()
    x = torch.randn(2, 13, 32)
    for bias in (mh.ALiBi(4), mh.T5Bias(4), torch.randn(4, 13, 13)[None]):
        _, weights = layer.with_weights(x, mask=mh.Causal(), bias=bias)
        with mh.probe.watch(layer) as calls:
            layer(x, mask=mh.Causal(), bias=bias)
        close(calls[0].weights(), weights)


def test_heads_and_queries_are_kept_alone_where_they_are_asked_for():
    layer = mh.MultiHeadAttention(32, 4, num_kv_heads=2).eval()
    x = torch.randn(2, 13, 32)
    mask = mh.PerHead((mh.Causal(), mh.Window(2), mh.Causal() & mh.Window(3), mh.Window(9)))
    _, weights = layer.with_weights(x, mask=mask, bias=mh.ALiBi(4))
    for queries, rows in ((slice(3, 7), range(3, 7)), ([12, 0], [12, 0]), (torch.tensor([4]), [4])):
        with mh.probe.watch(layer, heads=[3, 1], queries=queries) as calls:
            layer(x, mask=mask, bias=mh.ALiBi(4))
        close(calls[0].weights(), weights[:, [3, 1]][:, :, list(rows)])
        assert calls[0].call.q.numel() == 2 * 2 * len(rows) * 8
        assert calls[0].output.shape == (2, 2, len(rows), 8)


def test_a_whole_transformer_is_seen_layer_by_layer():
    model = mh.Transformer(mh.TransformerConfig(20, 20, d_model=32, num_heads=4)).eval()
    source, target = torch.randint(3, 20, (2, 7)), torch.randint(3, 20, (2, 5))
    plain = model(source, target)
    with mh.probe.watch(model) as calls:
        assert model(source, target).equal(plain)
    places = [call.where for call in calls]
    assert len(places) == len(set(places)) > 3
    assert {call.call.k.shape[2] for call in calls} == {5, 7}


def test_training_is_seen_before_dropout():
    layer = mh.MultiHeadAttention(32, 4, dropout=0.5).train()
    x = torch.randn(2, 13, 32)
    with mh.probe.watch(layer) as calls:
        _, weights = layer.with_weights(x)
    close(calls[0].weights(), weights)
    close(weights.sum(dim=-1), torch.ones(2, 4, 13))


def test_nobody_watches_when_the_block_is_left():
    layer = nn.Sequential(mh.MultiHeadAttention(32, 4))
    with mh.probe.watch(layer) as calls:
        layer(torch.randn(1, 3, 32))
    layer(torch.randn(1, 3, 32))
    assert len(calls) == 1


def test_two_watches_see_the_same():
    layer = mh.MultiHeadAttention(32, 4)
    with mh.probe.watch(layer) as outer, mh.probe.watch(layer, heads=[1]) as inner:
        layer(torch.randn(1, 3, 32))
    assert len(outer) == len(inner) == 1
    close(outer[0].weights()[:, 1:2], inner[0].weights())


@pytest.mark.parametrize("queries", [[0, 3], slice(0, 3)])
def test_chosen_queries_keep_their_places_without_a_mask(queries: list[int] | slice) -> None:
    layer, x = mh.MultiHeadAttention(16, 2), torch.randn(1, 9, 16)
    with mh.probe.watch(layer) as whole:
        layer(x)
    with mh.probe.watch(layer, queries=queries) as some:
        layer(x)
    torch.testing.assert_close(some[0].distance(), whole[0].distance()[:, :, queries])
    torch.testing.assert_close(some[0].mass_behind(1), whole[0].mass_behind(1)[:, :, queries])
