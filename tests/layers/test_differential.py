import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import OptionError

F64 = torch.float64

BUILDS = {
    "plain": {},
    "deep": {"depth": 7, "bias": False},
    "GQA": {"num_kv_heads": 2},
    "rotary and norms": {"rotary": mh.Rotary(4), "qk_norm": "rms"},
    "scores": {"scores": mh.Scores(0.4, 2.0, head_scale=True, sinks=True), "num_kv_heads": 2},
    "narrow heads": {"head_dim": 2, "num_kv_heads": 4},
}


def build(name: str = "plain", **options: object) -> mh.DifferentialAttention:
    """A layer of width 32 and eight heads whose norms and biases do something."""
    layer = mh.DifferentialAttention(32, 8, dtype=F64, **{**BUILDS[name], **options}).eval()
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) * (1 if "balance" in key else 2) - 0.5)
    return layer


def stream(batch: int = 2, length: int = 7, width: int = 32) -> Tensor:
    return torch.randn(batch, length, width, dtype=F64)


def share_of(layer: mh.DifferentialAttention, start: float) -> float:
    """lambda, of Ye et al. 2024, equation 2."""
    vectors = [getattr(layer.balance, name).tolist() for name in ("q1", "k1", "q2", "k2")]
    first, second = (
        math.exp(sum(a * b for a, b in zip(*pair, strict=True)))
        for pair in (vectors[:2], vectors[2:])
    )
    return first - second + start


def by_hand(
    layer: mh.DifferentialAttention, x: Tensor, context: Tensor, seen: Tensor, start: float
) -> tuple[Tensor, Tensor]:
    """Pair by pair; the plain layer's own tests guard what one map is."""
    pairs, group, width = (
        layer.num_heads // 2,
        layer.num_heads // layer.num_kv_heads,
        layer.head_dim,
    )
    queries, keys, values = layer.q_proj(x), layer.k_proj(context), layer.v_proj(context)
    share = share_of(layer, start)

    def part(y: Tensor, head: int) -> Tensor:
        return y[..., head * width : (head + 1) * width]

    def a_map(head: int) -> Tensor:
        q, k = layer.q_norm(part(queries, head)), layer.k_norm(part(keys, head // group))
        if layer.rotary is not None:
            q, k = (layer.rotary(t[:, None])[:, 0] for t in (q, k))
        scale = width**-0.5 if layer.scores.scale is None else layer.scores.scale
        scores = q @ k.mT * scale
        if layer.head_scale is not None:
            scores = 2 * torch.tanh(scores * layer.head_scale[head] / 2)
        scores = scores.masked_fill(~seen, -torch.inf)
        if layer.sink_logits is None:
            return scores.softmax(-1).nan_to_num(0.0)
        sink = layer.sink_logits[head].expand(*scores.shape[:2], 1)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]

    mixed, weights = [], []
    for pair in range(pairs):
        weight = a_map(pair) - share * a_map(pair + pairs)
        value = torch.cat(
            (part(values, pair // group), part(values, (pair + pairs) // group)), dim=-1
        )
        taken = weight @ value
        taken = taken / (taken.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        mixed.append(taken * (1 - start))
        weights.append(weight)
    return layer.out_proj(torch.cat(mixed, dim=-1)), torch.stack(weights, dim=1)


def start_of(name: str) -> float:
    return 0.8 - 0.6 * math.exp(-0.3 * BUILDS[name].get("depth", 0))


@pytest.mark.parametrize("name", BUILDS)
def test_it_is_what_its_definition_says(name: str) -> None:
    layer, x = build(name), stream()
    lower = torch.ones(7, 7, dtype=torch.bool).tril()
    expected = by_hand(layer, x, x, lower, start_of(name))
    assert_close(layer.with_weights(x, mask=mh.Causal()), expected)
    assert_close(layer(x, mask=mh.Causal()), expected[0])


def test_a_context_is_attended_to_likewise() -> None:
    layer, x, context = build(d_context=5), stream(length=3), stream(length=9, width=5)
    seen = torch.rand(3, 9) > 0.4
    expected = by_hand(layer, x, context, seen, start_of("plain"))
    assert_close(layer.with_weights(x, context, mask=seen), expected)


def test_rows_of_weights_sum_to_one_less_lambda_and_to_nothing_where_nobody_is_seen() -> None:
    layer, x = build(), stream()
    seen = torch.ones(7, 7, dtype=torch.bool)
    seen[2] = False
    out, weights = layer.with_weights(x, mask=seen)
    sums = torch.full((2, 4, 7), 1 - share_of(layer, start_of("plain")), dtype=F64)
    sums[:, :, 2] = 0
    assert_close(weights.sum(-1), sums)
    assert weights.min() < 0
    assert_close(out[:, 2], layer.out_proj.bias.expand(2, -1))


@torch.no_grad()
@pytest.mark.parametrize("cache", [mh.GrowingCache, lambda: mh.FixedCache(20), mh.PagedCache])
def test_chunks_give_what_one_pass_gives_and_the_cache_holds_as_much_as_a_plain_layers(
    cache,
) -> None:
    layer, x, held = build("GQA"), stream(length=11), cache()
    whole = layer(x, mask=mh.Causal())
    parts = [layer(part, mask=mh.Causal(), cache=held) for part in x.split([5, 1, 4, 1], 1)]
    assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)
    assert held.read().k.shape == held.read().v.shape == (2, 2, 11, 4)


def test_gradients_are_those_of_finite_differences() -> None:
    layer = build("scores")
    names = [name for name, _ in layer.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, named, (x,), {"mask": mh.Causal()})

    x = stream(1, 3).requires_grad_()
    assert torch.autograd.gradcheck(call, (x, *layer.parameters()), fast_mode=True)


def test_lambda_begins_near_what_the_depth_says() -> None:
    shares = torch.stack(
        [mh.DifferentialAttention(32, 8, depth=3).balance().detach() for _ in range(200)]
    )
    assert float(shares.mean()) == pytest.approx(0.8 - 0.6 * math.exp(-0.9), abs=0.01)
    assert 0 < float(shares.std()) < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(dtype: torch.dtype) -> None:
    layer, x = build("rotary and norms"), stream()
    exact = layer(x, mask=mh.Causal())
    half = layer.to(dtype)(x.to(dtype), mask=mh.Causal())
    assert half.dtype == dtype
    assert_close(half.double(), exact, atol=0.15, rtol=0.15)


def test_autocast_computes_in_its_dtype() -> None:
    layer, x = build("rotary and norms").float(), stream().float()
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = layer.with_weights(x, mask=mh.Causal())
    assert out.dtype == weights.dtype == torch.bfloat16
    assert_close(out.float(), layer(x, mask=mh.Causal()), atol=0.15, rtol=0.15)


def test_dropout_falls_on_both_maps_in_training_only() -> None:
    layer, x = build(dropout=0.5), stream(length=64)
    clean, weights = layer.with_weights(x)
    assert torch.equal(layer(x), layer(x))
    noisy, returned = layer.train().with_weights(x)
    assert_close(returned, weights)
    assert not torch.allclose(noisy, clean)


def test_heads_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(OptionError, match="num_heads must be even, since two heads make one map"):
        mh.DifferentialAttention(15, 3)
    with pytest.raises(OptionError, match=r"num_kv_heads must be even.*got num_kv_heads=1"):
        mh.DifferentialAttention(16, 4, num_kv_heads=1)
    with pytest.raises(OptionError, match="depth must be an int of at least 0"):
        mh.DifferentialAttention(16, 4, depth=-1)
