import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import OptionError

F64 = torch.float64

REFUSED = "num_kv_heads must divide those of the layer, 4; got num_kv_heads="

BUILDS = {
    "plain": {},
    "packed": {"projections": "packed"},
    "already grouped": {"num_kv_heads": 4},
    "norms and rotary": {"qk_norm": "rms", "rotary": mh.Rotary(4), "bias": False},
    "packed, without bias": {"projections": "packed", "bias": False, "qk_norm": "layer"},
    "all else": {"scores": mh.Scores(softcap=2.0, head_scale=True, sinks=True), "gate": "channel"},
}


def build(name: str) -> mh.MultiHeadAttention:
    layer = mh.MultiHeadAttention(32, 8, dtype=F64, **BUILDS[name])
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return layer


@torch.no_grad()
def make_alike(layer: mh.MultiHeadAttention, num_kv_heads: int) -> None:
    """Let the heads of each future group be the same."""
    if layer.projections == "packed":
        blocks = [t.split(layer.widths)[i] for t in layer.qkv_proj.parameters() for i in (1, 2)]
    else:
        blocks = [*layer.k_proj.parameters(), *layer.v_proj.parameters()]
    for rows in blocks:
        heads = rows.unflatten(0, (num_kv_heads, -1, layer.head_dim))
        heads.copy_(heads[:, :1].clone().expand_as(heads))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", BUILDS)
def test_heads_that_are_alike_are_joined_without_a_loss(name: str, num_kv_heads: int) -> None:
    layer, x = build(name), torch.randn(2, 9, 32, dtype=F64)
    make_alike(layer, num_kv_heads)
    grouped, error = mh.to_grouped(layer, num_kv_heads, x, mask=mh.Causal())
    assert error < 1e-14
    assert grouped.num_kv_heads == num_kv_heads and grouped.training
    assert_close(grouped(x, mask=mh.Causal()), layer(x, mask=mh.Causal()))
    cache = mh.GrowingCache()
    grouped(x, mask=mh.Causal(), cache=cache)
    assert cache.read().k.shape == (2, num_kv_heads, 9, 4)


@pytest.mark.parametrize("name", BUILDS)
def test_each_new_head_is_the_mean_of_those_that_it_stands_for(name: str) -> None:
    layer, x = build(name), torch.randn(2, 9, 32, dtype=F64)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    grouped, error = mh.to_grouped(layer, 2, x)
    assert 0.01 < error < 2
    with torch.no_grad():
        assert error == pytest.approx(float((grouped(x) - layer(x)).norm() / layer(x).norm()))
    assert_close(layer.state_dict(), before)

    def projected(which: mh.MultiHeadAttention) -> tuple[Tensor, Tensor]:
        if "packed" in name:
            return which.qkv_proj.project(x, 1, 3)
        return which.k_proj(x), which.v_proj(x)

    for new, old in zip(projected(grouped), projected(layer), strict=True):
        heads = old.unflatten(-1, (2, -1, 4))  # (batch, length, groups, heads of each, head_dim)
        assert_close(new.unflatten(-1, (2, 4)), heads.mean(-2))
    for key, value in grouped.state_dict().items():
        if value.shape == before[key].shape and not key.startswith(("k_proj", "v_proj")):
            assert_close(value, before[key])


def test_the_new_layer_learns_travels_and_may_attend_to_a_context() -> None:
    layer = mh.MultiHeadAttention(16, 4, d_context=6, dtype=F64)
    x, context = torch.randn(2, 3, 16, dtype=F64), torch.randn(2, 5, 6, dtype=F64)
    grouped, _ = mh.to_grouped(layer.eval(), 1, x, context)
    assert not grouped.training
    fresh = mh.MultiHeadAttention(16, 4, num_kv_heads=1, d_context=6, dtype=F64)
    fresh.load_state_dict(grouped.state_dict(), strict=True)
    assert_close(fresh(x, context), grouped(x, context))
    grouped(x, context).sum().backward()
    assert all(p.grad is not None for p in grouped.parameters())
    assert all(p.grad is None for p in layer.parameters())


def test_maps_of_a_differential_layer_stay_pairs() -> None:
    layer, x = mh.DifferentialAttention(32, 8, dtype=F64), torch.randn(2, 5, 32, dtype=F64)
    make_alike(layer, 2)
    assert mh.to_grouped(layer, 2, x).error < 1e-14
    with pytest.raises(OptionError, match="num_kv_heads must be even"):
        mh.to_grouped(layer, 1, x)


def test_heads_that_cannot_be_grouped_so_are_refused() -> None:
    layer, x = build("already grouped"), torch.randn(1, 2, 32, dtype=F64)
    with pytest.raises(OptionError, match=REFUSED + "3. These do: 1, 2, 4"):
        mh.to_grouped(layer, 3, x)
    with pytest.raises(OptionError, match=REFUSED + "8"):
        mh.to_grouped(layer, 8, x)
