import pytest
import torch
from torch import nn

import manyheads as mh


def spread(weight: torch.Tensor) -> float:
    return float(weight.detach().var()) * sum(weight.shape) / 2


@pytest.mark.parametrize("projections", ["separate", "packed"])
def test_xavier_gives_each_projection_its_own_variance(projections: str) -> None:
    layer = mh.MultiHeadAttention(256, 8, num_kv_heads=2, projections=projections)  # type: ignore[arg-type]
    weights = [layer.out_proj.weight]
    if projections == "packed":
        weights += layer.qkv_proj.weight.split(layer.qkv_proj.widths)
        assert layer.qkv_proj.bias.eq(0).all()
    else:
        weights += [layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]
        assert layer.k_proj.bias.eq(0).all()
    assert layer.out_proj.bias.eq(0).all()
    for weight in weights:
        assert spread(weight) == pytest.approx(1, abs=0.05)
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.97 * bound < float(weight.detach().abs().max()) <= bound


def test_the_other_ways_to_begin() -> None:
    normal = mh.MultiHeadAttention(256, 8, init="normal", projections="packed")
    assert float(normal.qkv_proj.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert normal.out_proj.bias.eq(0).all()
    torch.manual_seed(5)
    usual = mh.FeedForward(8, 16, init="torch")
    torch.manual_seed(5)
    linear = nn.Linear(8, 16)
    assert usual.up.bias.abs().sum() > 0
    assert usual.up.weight.shape == linear.weight.shape


MODULES = {
    "attention": lambda **place: mh.MultiHeadAttention(8, 2, qk_norm="layer", **place),
    "packed": lambda **place: mh.MultiHeadAttention(8, 2, projections="packed", **place),
    "scores and gates": lambda **place: mh.MultiHeadAttention(
        *(8, 2), scores=mh.Scores(head_scale=True, sinks=True), gate="head", **place
    ),
    "differential": lambda **place: mh.DifferentialAttention(8, 2, **place),
    "latents": lambda **place: mh.LatentAttention(
        *(8, 2, 6), head_dim=4, query_latent_dim=5, rotary=mh.Rotary(4), bias=True, **place
    ),
    "network": lambda **place: mh.FeedForward(8, 16, activation="swiglu", **place),
    "encoder layer": lambda **place: mh.EncoderLayer(8, 2, 16, rotary=mh.Rotary(4), **place),
    "decoder layer": lambda **place: mh.DecoderLayer(8, 2, 16, norm="pre", **place),
}


FIRST = {"head_scale": 1.0, "sink_logits": 0.0}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_built_on_the_meta_device_can_begin_anew(name: str) -> None:
    module = MODULES[name](device="meta", dtype=torch.float64)
    assert all(x.is_meta and x.dtype == torch.float64 for x in module.parameters())
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.constant_(parameter, torch.nan)
    module.reset_parameters()
    for key, parameter in module.named_parameters():
        assert parameter.isfinite().all(), key
        if "norm" in key:
            assert parameter.eq(1.0 if key.endswith("weight") else 0.0).all(), key
        if key in FIRST:
            assert parameter.eq(FIRST[key]).all(), key


@pytest.mark.parametrize("name", MODULES)
def test_a_module_built_on_the_meta_device_takes_a_strict_load(name: str) -> None:
    whole = MODULES[name]().eval()
    x = torch.randn(2, 3, 8)
    inputs = (x, torch.randn(2, 4, 8)) if name == "decoder layer" else (x,)
    for assign in (True, False):
        module = MODULES[name](device="meta").eval()
        if not assign:
            module.to_empty(device="cpu")
        module.load_state_dict(whole.state_dict(), strict=True, assign=assign)
        assert torch.equal(module(*inputs), whole(*inputs))


def test_shapes_can_be_learned_on_the_meta_device() -> None:
    layer = mh.DecoderLayer(8, 2, 16, device="meta")
    out = layer(torch.randn(2, 3, 8, device="meta"), torch.randn(2, 4, 8, device="meta"))
    assert out.is_meta and out.shape == (2, 3, 8)
