"""Training and evaluation are one computation: same length, same numbers, padding included."""

import pytest
import torch
from tests.cases.exact import near
from torch import Tensor

import manyheads as mh

KEEP = torch.tensor([[True, True, False, False], [True, False, False, False]])
MASKS = {
    "lengths": lambda: mh.Padding(lengths=torch.tensor([2, 1])),
    "keep": lambda: mh.Padding(KEEP),
    "torch's": lambda: mh.from_key_padding_mask(~KEEP),
    "Hugging Face's": lambda: mh.from_attention_mask(KEEP.long()),
    "causal": lambda: mh.Causal() & mh.Padding(KEEP),
}


def stream(padding: float = 0.5, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 8, generator=generator, dtype=dtype)
    return x.masked_fill(~KEEP[:, :, None], padding)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_evaluation_equals_training_at_every_position(
    dtype: torch.dtype, activation: str, norm: str, mask: object
) -> None:
    """NEST-01: the longest sequence has two tokens of four, and four rows come back."""
    layer = mh.EncoderLayer(8, 2, 16, dropout=0.0, norm=norm, activation=activation, dtype=dtype)
    x = stream(dtype=dtype)
    trained = layer.train()(x, mask=mask())
    with torch.no_grad():
        evaluated = layer.eval()(x, mask=mask())
    assert evaluated.shape == (2, 4, 8)
    assert torch.equal(trained, evaluated)
    assert evaluated.isfinite().all()
    with torch.inference_mode():
        assert torch.equal(layer(x, mask=mask()), evaluated)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padding", [torch.nan, torch.inf, 1e30])
def test_what_padding_holds_changes_no_real_token(
    padding: float, training: bool, norm: str
) -> None:
    layers = torch.nn.ModuleList(
        mh.EncoderLayer(8, 2, 16, dropout=0.0, norm=norm, dtype=torch.float64) for _ in range(3)
    ).train(training)
    results = []
    for x in (stream(0.0), stream(padding)):
        leaf = x.requires_grad_()
        h = leaf
        for layer in layers:
            h = layer(h, mask=mh.Padding(KEEP))
        layers.zero_grad()
        h[KEEP].square().sum().backward()
        results.append([h[KEEP], leaf.grad, *(weight.grad for weight in layers.parameters())])
    for got, expected in zip(*results, strict=True):
        near(got, expected.detach().numpy())


def test_a_shorter_batch_gives_the_same_real_tokens() -> None:
    layer = mh.EncoderLayer(8, 2, 16, dropout=0.0, dtype=torch.float64).eval()
    x = stream()
    whole = layer(x, mask=mh.Padding(KEEP))
    cut = layer(x[:, :2], mask=mh.Padding(KEEP[:, :2]))
    near(whole[:, :2][KEEP[:, :2]], cut[KEEP[:, :2]].detach().numpy())
    near(whole[1, :1], layer(x[1:, :1])[0].detach().numpy())


@pytest.mark.parametrize("by_positions", [True, False])
@pytest.mark.parametrize("padding", [torch.nan, torch.inf, -torch.inf])
def test_what_padding_of_a_context_holds_changes_nothing(
    padding: float, by_positions: bool
) -> None:
    layer = mh.MultiHeadAttention(8, 2, d_value=8, dtype=torch.float64)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    said = {"mask": mh.Padding(KEEP)}
    if by_positions:
        columns = torch.arange(4).masked_fill(~KEEP, -1)
        said = {"positions": torch.arange(3), "context_positions": columns}
    results = []
    for context in (stream(0.0), stream(padding)):
        leaves = [x.clone().requires_grad_(), context.requires_grad_(), context.detach().clone()]
        leaves[2].requires_grad_()
        layer.zero_grad()
        out = layer(*leaves, **said)
        out.square().sum().backward()
        weights = [weight.grad for weight in layer.parameters()]
        results.append([out, *(leaf.grad for leaf in leaves), *weights])
    for got, expected in zip(*results, strict=True):
        near(got, expected.detach().numpy())


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("cached", [True, False])
def test_so_it_is_in_a_decoder_layer(cached: bool, norm: str) -> None:
    layer = mh.DecoderLayer(8, 2, 16, dropout=0.0, norm=norm, dtype=torch.float64)
    x, mask = torch.randn(2, 3, 8, dtype=torch.float64), mh.Padding(KEEP)
    results = []
    for context in (stream(0.0), stream(torch.nan)):
        cache = mh.LayerCache.new() if cached else None
        out = layer(x, context, context_mask=mask, cache=cache)
        if cached:
            # the cache knows what the first mask said
            out = torch.cat((out, layer(x, context_mask=None, cache=cache)), dim=1)
        layer.zero_grad()
        out.square().sum().backward()
        results.append([out, *(weight.grad for weight in layer.parameters())])
    for got, expected in zip(*results, strict=True):
        near(got, expected.detach().numpy())
