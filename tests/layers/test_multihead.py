import pytest
import torch
from tests.layers.by_hand import by_hand
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh

F64 = torch.float64

BUILDS = {
    "plain": {},
    "GQA": {"num_kv_heads": 2},
    "MQA": {"num_kv_heads": 1},
    "without bias": {"bias": False},
    "narrow heads": {"head_dim": 2},
    "wide heads": {"head_dim": 6, "num_kv_heads": 2},
    "RMS norm": {"qk_norm": "rms"},
    "layer norm": {"qk_norm": "layer", "num_kv_heads": 2},
    "rotary": {"rotary": mh.Rotary(4)},
    "norm, then rotary": {"qk_norm": "rms", "rotary": mh.Rotary(4), "num_kv_heads": 1},
    "another scale": {"scores": mh.Scores(scale=-0.7)},
    "softcap": {"scores": mh.Scores(softcap=0.5), "num_kv_heads": 2},
    "scales of heads": {"scores": mh.Scores(head_scale=True), "num_kv_heads": 2},
    "sinks": {"scores": mh.Scores(sinks=True), "num_kv_heads": 2},
    "all of the scores": {"scores": mh.Scores(0.3, 0.8, head_scale=True, sinks=True)},
    "gates of heads": {"gate": "head", "num_kv_heads": 2},
    "gates of channels": {"gate": "channel", "head_dim": 6, "bias": False},
}


def build(name: str = "plain", **options: object) -> mh.MultiHeadAttention:
    """A layer of width 16 and four heads whose norms and biases do something."""
    layer = mh.MultiHeadAttention(16, 4, dtype=F64, **{**BUILDS[name], **options}).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return layer


def stream(batch: int = 2, length: int = 5, width: int = 16) -> Tensor:
    return torch.randn(batch, length, width, dtype=F64)


@pytest.mark.parametrize("name", BUILDS)
def test_self_attention_is_what_its_definition_says(name: str) -> None:
    layer, x, places = build(name), stream(), torch.arange(5)
    lower = torch.ones(5, 5, dtype=torch.bool).tril()
    out, weights = by_hand(layer, x, seen=lower, places=(places, places))
    assert_close(layer(x, mask=mh.Causal()), out)
    again, found = layer.with_weights(x, mask=mh.Causal())
    assert_close((again, found), (out, weights))


@pytest.mark.parametrize("name", BUILDS)
def test_attention_to_a_context_is_what_its_definition_says(name: str) -> None:
    layer, x, context = build(name), stream(length=3), stream(length=7)
    places = (torch.arange(3) + 4, torch.arange(7))
    given = {"positions": 4} if layer.rotary is not None else {}
    assert_close(layer(x, context, **given), by_hand(layer, x, context, places=places)[0])


def test_context_and_value_have_widths_of_their_own() -> None:
    layer = build(d_context=10, d_value=3)
    x, context, value = stream(length=3), stream(length=7, width=10), stream(length=7, width=3)
    assert layer.k_proj.weight.shape == (16, 10)
    assert layer.v_proj.weight.shape == (16, 3)
    assert_close(layer(x, context, value), by_hand(layer, x, context, value)[0])


def test_the_value_follows_the_context_where_its_width_is_not_given() -> None:
    layer = build(d_context=10)
    x, context = stream(length=3), stream(length=7, width=10)
    assert_close(layer(x, context), by_hand(layer, x, context)[0])


@pytest.mark.parametrize("mask_of", ["tensor of two", "tensor of four", "each head"])
def test_masks_reach_the_heads_that_they_are_made_for(mask_of: str) -> None:
    layer, x = build("GQA"), stream()
    seen = torch.rand(2, 4, 5, 5) > 0.4
    mask: mh.Mask | Tensor = seen
    if mask_of == "tensor of two":
        mask = seen = seen[0, 0]
    elif mask_of == "each head":
        seen = seen[:1].expand(2, -1, -1, -1)
        mask = mh.PerHead([mh.Dense(seen[0, h]) for h in range(4)])
    out, weights = by_hand(layer, x, seen=seen)
    assert_close(layer.with_weights(x, mask=mask), (out, weights))


def test_queries_of_a_context_are_the_last_of_it_unless_placed() -> None:
    layer, x = build(), stream(length=5)
    tail = layer(x[:, 3:], x, mask=mh.Causal() & mh.Window(2))
    assert_close(tail, layer(x, mask=mh.Causal() & mh.Window(2))[:, 3:])
    head = layer(x[:, :2], x, mask=mh.Causal() & mh.Window(2), positions=0)
    assert_close(head, layer(x, mask=mh.Causal() & mh.Window(2))[:, :2])


def test_positions_given_as_int_or_tensor_move_rotary_and_masks_together() -> None:
    layer, x = build("rotary"), stream()
    out = layer(x, mask=mh.Causal())
    assert_close(layer(x, mask=mh.Causal(), positions=100), out)  # distances alone count
    order = torch.tensor([3, 1, 4, 0, 2])
    mixed = layer(x[:, order], mask=mh.Causal(), positions=order)
    assert_close(mixed, out[:, order])


@pytest.mark.parametrize("name", ["plain", "all of the scores", "gates of heads"])
def test_a_query_that_sees_nobody_gives_the_bias_of_the_output(name: str) -> None:
    layer, x = build(name), stream().requires_grad_()
    out, weights = layer.with_weights(x, mask=torch.zeros(5, 5, dtype=torch.bool))
    assert_close(out, layer.out_proj.bias.expand_as(out))
    assert weights.eq(0).all()
    out.sum().backward()
    assert x.grad is not None and x.grad.eq(0).all()


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("name", ["plain", "norm, then rotary"])
def test_nothing_and_one_token_are_lengths_too(name: str, length: int, batch: int) -> None:
    layer, x = build(name), stream(batch, length)
    for mask in (None, mh.Causal(), mh.Padding(torch.ones(batch, length, dtype=torch.bool))):
        out, weights = layer.with_weights(x, mask=mask)
        assert out.shape == x.shape
        assert weights.shape == (batch, 4, length, length)
    context = stream(batch, 0)
    assert_close(build()(x, context), build().out_proj.bias.new_zeros(x.shape) + 0, atol=9, rtol=0)
    assert build()(x, context).shape == x.shape


def test_dropout_falls_on_weights_in_training_only_and_returned_weights_are_whole() -> None:
    layer, x = build(dropout=0.5), stream(length=64)
    clean, weights = layer.with_weights(x)
    before = torch.get_rng_state()
    layer(x)
    assert torch.equal(torch.get_rng_state(), before), "eval draws nothing"
    noisy, returned = layer.train().with_weights(x)
    assert_close(returned, weights)
    assert not torch.allclose(noisy, clean)
    mean = torch.stack([layer(x) for _ in range(200)]).mean(0)
    assert (mean - clean).abs().mean() < 0.1


def test_output_dropout_drops_the_output() -> None:
    layer = build(output_dropout=0.5).train()
    share = layer(stream(length=200)).eq(0).double().mean()
    assert 0.45 < share < 0.55


def test_training_without_dropout_is_eval() -> None:
    layer, x = build("norm, then rotary"), stream()
    evaluated = layer(x, mask=mh.Causal())
    assert torch.equal(layer.train()(x, mask=mh.Causal()), evaluated)


def test_neighbours_in_the_batch_do_not_matter() -> None:
    layer, x = build("rotary"), stream(3)
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0]]).bool()
    out = layer(x, mask=mh.Causal() & mh.Padding(keep))
    for row in range(3):
        alone = x[row : row + 1, keep[row]]
        start = int(keep[row].int().argmax())
        found = layer(alone, mask=mh.Causal(), positions=start)
        assert_close(out[row : row + 1, keep[row]], found)


@torch.no_grad()
@pytest.mark.parametrize("kind", [mh.GrowingCache, lambda: mh.FixedCache(20), mh.PagedCache])
@pytest.mark.parametrize("name", BUILDS)
def test_chunks_of_rows_that_begin_anywhere_give_what_each_gives_alone(name: str, kind) -> None:
    layer, x, cache = build(name), stream(3, 9), kind()
    starts = torch.tensor([[0], [3], [7]])
    places = torch.arange(9) - starts
    spoiled, parts = x.masked_fill((places < 0)[..., None], torch.nan), []
    for first, last in ((0, 4), (4, 5), (5, 9)):
        where = places[:, first:last]
        part = spoiled[:, first:last]
        parts.append(layer(part, mask=mh.Causal(), positions=where, cache=cache))
    out = torch.cat(parts, 1)
    for row, start in enumerate(starts.flatten().tolist()):
        alone = layer(x[row : row + 1, start:], mask=mh.Causal())
        assert_close(out[row : row + 1, start:], alone, atol=1e-10, rtol=0)
        nobody = out[row, :start]
        bias = torch.zeros(16, dtype=F64) if layer.out_proj.bias is None else layer.out_proj.bias
        assert_close(nobody, bias.expand_as(nobody))


def test_hooks_see_a_call_that_returns_weights() -> None:
    layer, calls = build(), []
    layer.register_forward_hook(lambda module, inputs, out: calls.append(out))
    layer.register_forward_pre_hook(
        lambda module, inputs, options: calls.append(options["mask"]), with_kwargs=True
    )
    out, _ = layer.with_weights(stream(), mask=mh.Causal())
    assert calls[0] == mh.Causal()
    assert calls[1] is out


def test_weights_of_an_inner_layer_come_through_a_list() -> None:
    layer, into, x = build(), [], stream()
    out = layer(x, weights_into=into)
    assert_close((out, into[0]), layer.with_weights(x))


@pytest.mark.parametrize("name", BUILDS)
def test_every_parameter_learns(name: str) -> None:
    layer = build(name)
    layer(stream(), mask=mh.Causal()).square().sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, key
        # Softmax does not see what all keys have in common.
        if key not in ("k_proj.bias", "k_norm.bias"):
            assert parameter.grad.abs().max() > 1e-12, key


@pytest.mark.parametrize(
    "name", ["GQA", "norm, then rotary", "all of the scores", "gates of channels"]
)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    layer = build(name)
    x, names = stream(1, 3).requires_grad_(), [n for n, _ in layer.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, named, (x,), {"mask": mh.Causal()})

    assert torch.autograd.gradcheck(call, (x, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", ["norm, then rotary", "all of the scores", "gates of heads"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(dtype: torch.dtype, name: str) -> None:
    layer, x = build(name), stream()
    exact = layer(x, mask=mh.Causal())
    half = layer.to(dtype)(x.to(dtype), mask=mh.Causal())
    assert half.dtype == dtype
    assert_close(half.double(), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    "name", ["plain", "norm, then rotary", "all of the scores", "gates of heads"]
)
def test_autocast_computes_in_its_dtype(name: str) -> None:
    layer, x = build(name).float(), stream().float()
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = layer.with_weights(x, mask=mh.Causal())
        cache = mh.GrowingCache()
        parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([2, 3], 1)]
    assert out.dtype == weights.dtype == torch.bfloat16
    assert_close(out.float(), layer(x, mask=mh.Causal()), atol=0.1, rtol=0.1)
    assert_close(torch.cat(parts, 1), out, atol=0.1, rtol=0.1)


def test_a_quantised_or_wrapped_projection_is_left_alone() -> None:
    layer, x = build(), stream()
    expected = layer(x)

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    layer.out_proj = Wrapped(layer.out_proj)  # type: ignore[assignment]
    assert torch.equal(layer(x), expected)
    plain = build()
    nn.utils.parametrizations.weight_norm(plain.out_proj)
    plain(x)
