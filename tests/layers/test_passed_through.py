"""What a stack's layers hand on to their self-attention."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh
from manyheads.layers import Block, Residual

F64 = torch.float64
ROTARY = mh.Rotary(4, axes=mh.Axial(2))
COORDINATES = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [5, 3]])
GIVEN: dict[str, dict[str, object]] = {
    "an object": {"bias": mh.ALiBi(2)},
    "a tensor": {"bias": torch.randn(2, 2, 5, 5, dtype=F64)},
    "coordinates": {"coordinates": COORDINATES},
}


def build(kind: str, given: str, **options: object) -> nn.Module:
    made = mh.EncoderLayer if kind == "encoder" else mh.DecoderLayer
    rotary = ROTARY if given == "coordinates" else None
    return made(8, 2, 16, rotary=rotary, dropout=0.0, dtype=F64, **options).eval()  # type: ignore[arg-type]


def call(layer: nn.Module, x: Tensor, context: Tensor, **given: object) -> tuple[Tensor, ...]:
    if isinstance(layer, mh.EncoderLayer):
        return layer.with_weights(x, mask=mh.Causal(), **given)
    return layer.with_weights(x, context, **given)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("given", GIVEN)
def test_a_bias_and_coordinates_reach_the_self_attention_alone(
    given: str, kind: str, norm: str
) -> None:
    layer = build(kind, given, norm=norm)
    x, context = torch.randn(2, 5, 8, dtype=F64), torch.randn(2, 3, 8, dtype=F64)
    out, weights, *crossed = call(layer, x, context, **GIVEN[given])
    residual = layer.attention_residual if kind == "encoder" else layer.self_residual
    entered = residual.norm(x) if norm == "pre" else x
    expected = layer.self_attention.with_weights(entered, mask=mh.Causal(), **GIVEN[given])
    assert_close(weights, expected[1])
    taken = x + expected[0] if norm == "pre" else residual.norm(x + expected[0])
    if kind == "decoder":
        taken = layer.cross_residual(taken, lambda y: layer.cross_attention(y, context))
    assert_close(out, layer.feed_forward_residual(taken, layer.feed_forward))
    without = {} if given != "coordinates" else {"coordinates": COORDINATES.flip(0)}
    assert not torch.allclose(call(layer, x, context, **without)[1], weights)
    if kind == "decoder":
        assert crossed[0].shape == (2, 2, 5, 3)


PARTS = {
    "latents": lambda: mh.LatentAttention(8, 2, 6, head_dim=4, rotary=mh.Rotary(4), dtype=F64),
    "differential": lambda: mh.DifferentialAttention(8, 2, rotary=mh.Rotary(4), dtype=F64),
    "gates": lambda: mh.MultiHeadAttention(8, 2, gate="head", dtype=F64),
}


@torch.no_grad()
@pytest.mark.parametrize("name", PARTS)
def test_a_block_takes_any_attention(name: str) -> None:
    attention, thought = PARTS[name](), mh.FeedForward(8, 16, dtype=F64)
    block = Block(attention, thought, *(Residual(8, norm="pre", dtype=F64) for _ in "ab")).eval()
    x, cache = torch.randn(2, 7, 8, dtype=F64), mh.GrowingCache()
    whole, weights = block.with_weights(x, mask=mh.Causal())
    parts = [block(part, mask=mh.Causal(), cache=cache) for part in x.split([4, 1, 2], 1)]
    assert_close(torch.cat(parts, 1), whole)
    assert_close(
        weights, attention.with_weights(block.attention_residual.norm(x), mask=mh.Causal())[1]
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_bias_that_reads_positions_is_right_with_a_cache(kind: str) -> None:
    layer = build(kind, "an object")
    x, context = torch.randn(2, 7, 8, dtype=F64), torch.randn(2, 3, 8, dtype=F64)
    whole = call(layer, x, context, **GIVEN["an object"])[0]
    cache = mh.GrowingCache() if kind == "encoder" else mh.LayerCache.new()
    parts = [
        call(layer, part, context, cache=cache, **GIVEN["an object"])[0]
        for part in x.split([3, 1, 3], 1)
    ]
    assert_close(torch.cat(parts, 1), whole)
