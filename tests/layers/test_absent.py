"""Tokens that are not there may hold anything; it reaches no output and no gradient."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh
from manyheads.masks import bind

F64 = torch.float64
KEEP = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
PLACES = torch.tensor([[0, 1, 2, -1, -1], [-2, -1, 0, 1, 2], [-1, -1, -1, -1, -1]])
ANYTHING = (torch.nan, torch.inf, -torch.inf, 1e300)

LAYERS = {
    "attention": lambda: mh.MultiHeadAttention(8, 2, num_kv_heads=1, qk_norm="rms", dtype=F64),
    "rotary": lambda: mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64),
    "packed": lambda: mh.MultiHeadAttention(8, 2, projections="packed", dtype=F64),
    "scores and gates": lambda: mh.MultiHeadAttention(
        *(8, 2), scores=mh.Scores(0.3, 2.0, head_scale=True, sinks=True), gate="channel", dtype=F64
    ),
    "differential": lambda: mh.DifferentialAttention(8, 2, rotary=mh.Rotary(4), dtype=F64),
    "latents": lambda: mh.LatentAttention(
        *(8, 2, 3), head_dim=4, query_latent_dim=5, rotary=mh.Rotary(2), bias=True, dtype=F64
    ),
    "encoder, post": lambda: mh.EncoderLayer(8, 2, 16, dropout=0.0, dtype=F64),
    "encoder, pre": lambda: mh.EncoderLayer(8, 2, 16, dropout=0.0, norm="pre", dtype=F64),
}


def said(how: str) -> dict[str, object]:
    if how == "padding":
        return {"mask": mh.Causal() & mh.Padding(KEEP)}
    if how == "positions":
        return {"mask": mh.Causal(), "positions": PLACES}
    return {"mask": bind(mh.Causal() & mh.Padding(KEEP), 3, 5, 5)}


def learned(layer: nn.Module, out: Tensor) -> list[Tensor]:
    """Gradients by every parameter, of what comes out for the tokens that are there."""
    layer.zero_grad()
    out[KEEP].square().sum().backward()
    return [torch.zeros(1) if p.grad is None else p.grad.clone() for p in layer.parameters()]


@pytest.mark.parametrize("how", ["padding", "positions", "settled"])
@pytest.mark.parametrize("name", LAYERS)
def test_self_attention_does_not_read_them(name: str, how: str) -> None:
    layer, x = LAYERS[name](), torch.randn(3, 5, 8, dtype=F64)
    clean = layer(x, **said(how))
    gradients = learned(layer, clean)
    for value in ANYTHING:
        dirty = x.masked_fill(~KEEP[..., None], value).requires_grad_()
        out = layer(dirty, **said(how))
        assert_close(out[KEEP], clean[KEEP])
        assert out.isfinite().all(), "those rows too, and samples that have no token at all"
        assert_close(learned(layer, out), gradients)
        assert dirty.grad is not None and dirty.grad[~KEEP].eq(0).all()
        dirty.grad = None
        layer(dirty, **said(how)).sum().backward()  # a loss over padding, too
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("value", ANYTHING)
@pytest.mark.parametrize("how", ["padding", "positions", "settled"])
def test_attention_to_a_context_does_not_read_them(how: str, value: float) -> None:
    layer = mh.MultiHeadAttention(8, 2, d_context=6, d_value=4, dtype=F64)
    x, gone = torch.randn(3, 2, 8, dtype=F64), ~KEEP[..., None]
    context, own = torch.randn(3, 5, 6, dtype=F64), torch.randn(3, 5, 4, dtype=F64)
    options: dict[str, object] = {"mask": mh.Padding(KEEP)}
    if how == "positions":
        options = {"positions": torch.tensor([7, 8]), "context_positions": PLACES}
    elif how == "settled":
        options = {"mask": bind(mh.Padding(KEEP), 3, 2, 5)}
    clean = layer(x, context, own, **options)
    clean.sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    context, own = context.masked_fill(gone, value), own.masked_fill(gone, value)
    out = layer(x, context.requires_grad_(), own.requires_grad_(), **options)
    out.sum().backward()
    assert_close(out, clean)
    assert_close([p.grad for p in layer.parameters()], gradients)
    assert context.grad is not None and own.grad is not None
    assert context.grad[~KEEP].eq(0).all() and own.grad[~KEEP].eq(0).all()


def test_queries_that_are_not_there_do_not_ask_a_context() -> None:
    layer, context = mh.MultiHeadAttention(8, 2, dtype=F64), torch.randn(3, 4, 8, dtype=F64)
    x = torch.randn(3, 5, 8, dtype=F64).masked_fill(~KEEP[..., None], torch.nan)
    out = layer(x, context, positions=PLACES)
    assert out[~KEEP].eq(0).all()  # the bias of the output begins at 0
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_decoder_layer_does_not_read_them_on_either_side(norm: str) -> None:
    layer = mh.DecoderLayer(8, 2, 16, norm=norm, dropout=0.0, dtype=F64)  # type: ignore[arg-type]
    x, context = torch.randn(3, 5, 8, dtype=F64), torch.randn(3, 5, 8, dtype=F64)
    options = {"positions": PLACES, "context_mask": mh.Padding(KEEP)}
    clean = layer(x, context, **options)
    gradients = learned(layer, clean)
    x, context = (t.masked_fill(~KEEP[..., None], torch.nan) for t in (x, context))
    out = layer(x, context, **options)
    assert out.isfinite().all()
    assert_close(out[KEEP], clean[KEEP])
    assert_close(learned(layer, out), gradients)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_queries_that_are_not_there_take_nothing_from_a_decoders_context(
    padded: bool, settled: bool, cached: bool
) -> None:
    layer = mh.DecoderLayer(8, 2, 16, dropout=0.0, dtype=F64).eval()
    nn.init.uniform_(layer.cross_attention.out_proj.bias)
    taken: list[Tensor] = []
    layer.cross_attention.register_forward_hook(lambda module, given, out: taken.append(out))
    x, context = torch.randn(3, 5, 8, dtype=F64), torch.randn(3, 4, 8, dtype=F64)
    there = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    seen: object = mh.Padding(there) if padded else None
    if settled:
        seen = bind(seen, 3, 5, 4)
    cache = mh.LayerCache.new() if cached else None
    _, own, crossed = layer.with_weights(
        x, context, positions=PLACES, context_mask=seen, cache=cache
    )
    bias = layer.cross_attention.out_proj.bias
    assert_close(taken[0][~KEEP], bias.expand(int((~KEEP).sum()), -1))
    assert crossed.mT[..., ~KEEP[0]][0].eq(0).all() and own[2].eq(0).all()
    if not padded:
        assert_close(crossed.sum(-1), KEEP[:, None].double().expand(3, 2, 5))
    if cached:  # a later chunk, of which the second row has nothing
        later = torch.tensor([[3, 4], [-1, -1], [0, 1]])
        layer(torch.randn(3, 2, 8, dtype=F64), positions=later, cache=cache)
        assert_close(taken[1][1], bias.expand(2, -1))
        assert not torch.allclose(taken[1][0], bias)


@pytest.mark.parametrize("how", ["padding", "positions"])
def test_a_cache_does_not_keep_them(how: str) -> None:
    layer, cache = LAYERS["rotary"](), mh.GrowingCache()
    x = torch.randn(3, 5, 8, dtype=F64).masked_fill(~KEEP[..., None], torch.nan)
    layer(x, cache=cache, **said(how))
    out = layer(torch.randn(3, 2, 8, dtype=F64), cache=cache)  # which says nothing of them
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    crossed = mh.CrossCache()
    layer(x[:, :5].nan_to_num(), x, mask=mh.Padding(KEEP), positions=0, cache=crossed)
    assert layer(torch.randn(3, 1, 8, dtype=F64), positions=5, cache=crossed).isfinite().all()


def test_a_real_tokens_nan_is_not_hidden() -> None:
    layer, x = LAYERS["attention"](), torch.randn(1, 5, 8, dtype=F64)
    x[0, 2] = torch.nan
    assert layer(x, mask=mh.Causal())[0, 2:].isnan().all()
