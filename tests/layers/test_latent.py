import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.errors import CacheError, OptionError

F64 = torch.float64

CACHES: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(40),
    "ring": lambda: mh.RingCache(40),
    "paged": lambda: mh.PagedCache(BlockPool(4)),
}

BUILDS = {
    "latent queries": {"query_latent_dim": 7},
    "plain queries": {"value_dim": 5},
    "no rotary": {"rotary": None},
    "biases": {"bias": True, "query_latent_dim": 7},
    "halves": {"rotary": mh.Rotary(6, rotary_dim=2)},
    "YaRN": {"rotary": mh.Rotary(6, scaling=mh.YaRN(4.0, 8, mscale_all=1.0))},
    "a rotary that knows the length": {
        "rotary": mh.Rotary(6, scaling=mh.DynamicNTKScaling(4.0, 8))
    },
}


def build(name: str = "latent queries", **options: object) -> mh.LatentAttention:
    """A layer of width 16 and four heads whose norms and biases do something."""
    given = {"head_dim": 4, "rotary": mh.Rotary(6, pairs="interleaved"), **BUILDS[name], **options}
    layer = mh.LatentAttention(16, 4, 12, dtype=F64, **given).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return layer


def stream(batch: int = 2, length: int = 11) -> Tensor:
    return torch.randn(batch, length, 16, dtype=F64)


def by_hand(layer: mh.LatentAttention, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Head by head and with expanded keys, from the paper's equations."""
    asked = layer.q_norm(layer.q_down(x))
    turning = layer.turning_dim
    latent, key = layer.kv_down(x).split((layer.latent_dim, turning), dim=-1)
    latent = latent / (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.kv_norm.weight
    scale, mixed, weights = (layer.head_dim + turning) ** -0.5, [], []
    if layer.rotary is not None:
        key, scale = layer.rotary(key[:, None])[:, 0], scale * layer.rotary.score_factor
    for h in range(layer.num_heads):
        width, value_width = layer.head_dim + turning, layer.head_dim + layer.value_dim
        q = asked @ layer.q_up.weight[h * width : (h + 1) * width].mT
        up = layer.kv_up.weight[h * value_width : (h + 1) * value_width]
        scores = q[..., : layer.head_dim] @ (latent @ up[: layer.head_dim].mT).mT
        if layer.rotary is not None:
            scores = scores + layer.rotary(q[:, None, :, layer.head_dim :])[:, 0] @ key.mT
        weight = (scores * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        weights.append(weight)
        mixed.append(weight @ latent @ up[layer.head_dim :].mT)
    return layer.out_proj(torch.cat(mixed, dim=-1)), torch.stack(weights, dim=1)


@pytest.mark.parametrize("name", BUILDS)
def test_it_is_what_its_definition_says(name: str) -> None:
    layer, x = build(name), stream()
    expected = by_hand(layer, x, torch.ones(11, 11, dtype=torch.bool).tril())
    assert_close(layer.with_weights(x, mask=mh.Causal()), expected)
    assert_close(layer(x, mask=mh.Causal()), expected[0])


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The way that each call went: "absorbed" or "expanded"."""
    went: list[str] = []
    for way in ("absorbed", "expanded"):
        inner = getattr(mh.LatentAttention, f"_{way}")

        def spy(self, *given, way=way, inner=inner):
            went.append(way)
            return inner(self, *given)

        monkeypatch.setattr(mh.LatentAttention, f"_{way}", spy)
    return went


@torch.no_grad()
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", BUILDS)
def test_chunks_absorbed_or_expanded_give_what_one_pass_gives(
    name: str, kind: str, ways: list[str]
) -> None:
    layer, x = build(name), stream(length=23)
    whole, weights = layer.with_weights(x, mask=mh.Causal())
    assert ways == ["expanded"]
    cache, parts = CACHES[kind](), []
    for part in x.split([9, 1, 1, 12], dim=1):
        parts.append(layer.with_weights(part, mask=mh.Causal(), cache=cache))
    assert ways[1:] == ["expanded", "absorbed", "absorbed", "expanded"]
    assert_close(parts[3][0], whole[:, 11:], atol=1e-10, rtol=0)
    assert_close(parts[3][1], weights[:, :, 11:], atol=1e-10, rtol=0)
    if layer.rotary is None or not layer.rotary.depends_on_length:  # all as the text was then
        assert_close(torch.cat([out for out, _ in parts], 1), whole, atol=1e-10, rtol=0)
        assert_close(parts[1][1], weights[:, :, 9:10, :10], atol=1e-10, rtol=0)
    for length in (10, 11):
        out, _ = parts[length - 9]
        assert_close(out, layer(x[:, :length], mask=mh.Causal())[:, -1:], atol=1e-10, rtol=0)


@pytest.mark.parametrize("chunks", [[5, 1, 1, 4], [1] * 11])
def test_rows_that_are_padded_on_the_left_decode_as_they_do_alone(chunks: list[int]) -> None:
    layer, x = build(), stream(3)
    lengths = (11, 7, 9)
    places = torch.stack([torch.arange(11) - 11 + length for length in lengths])
    cache, parts, at = mh.GrowingCache(), [], 0
    spoiled = x.masked_fill((places < 0)[..., None], torch.nan)
    for part in spoiled.split(chunks, dim=1):
        here = places[:, at : at + part.shape[1]]
        parts.append(layer(part, mask=mh.Causal(), positions=here, cache=cache))
        at += part.shape[1]
    out = torch.cat(parts, 1)
    for row, length in enumerate(lengths):
        alone = layer(x[row : row + 1, 11 - length :], mask=mh.Causal())
        assert_close(out[row : row + 1, 11 - length :], alone, atol=1e-10, rtol=0)
    assert out[places < 0].eq(0).all()


def test_which_way_is_chosen_is_a_matter_of_shapes() -> None:
    """DeepSeek's widths: after a long text, up to 170 queries at once are absorbed."""
    layer = mh.LatentAttention(64, 2, 512, head_dim=128, rotary=mh.Rotary(64), device="meta")
    cache = mh.GrowingCache()

    def absorbs(q_len: int, kv_len: int) -> bool:
        q, kept = torch.empty(1, 2, q_len, 128), torch.empty(1, 1, kv_len, 576)
        return layer._absorbs(q, kept, cache, None)

    assert not absorbs(1, 1) and not absorbs(300, 300)
    assert absorbs(1, 2) and absorbs(1, 5000)
    assert absorbs(150, 100_000) and not absorbs(171, 10_000_000)


@torch.no_grad()
@pytest.mark.parametrize("bias", ["ALiBi", "Shaw", "tensor"])
def test_a_bias_means_the_same_on_both_ways(bias: str, ways: list[str]) -> None:
    layer, x = build(), stream()
    given: mh.Bias | Tensor = mh.ALiBi(4)
    if bias == "Shaw":  # it reads queries, of the width of an expanded one
        given = mh.ShawBias(4, 10, max_distance=3, dtype=F64)
    elif bias == "tensor":
        given = torch.randn(4, 11, 11, dtype=F64)[None]
    whole = layer(x, mask=mh.Causal(), bias=given)
    cache, tail = mh.GrowingCache(), given
    prompt = given[..., :10, :10] if isinstance(given, Tensor) else given
    if isinstance(given, Tensor):
        tail = given[..., 10:, :]
    layer(x[:, :10], mask=mh.Causal(), bias=prompt, cache=cache)
    out = layer(x[:, 10:], mask=mh.Causal(), bias=tail, cache=cache)
    assert_close(out, whole[:, 10:], atol=1e-10, rtol=0)
    assert ways[-1] == ("expanded" if bias == "Shaw" else "absorbed")


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[5, 1, 6], [1] * 12])
def test_a_ring_that_keeps_the_first_tokens_counts_positions_in_the_cache(
    chunks: list[int],
) -> None:
    layer, x = build(), stream(length=12)
    mask = mh.Causal() & (mh.Window(4) | mh.Global((0, 1)))
    whole = layer(x, mask=mask, cache=mh.RingCache(4, keep_first=2))
    ring = mh.RingCache(4, keep_first=2)
    parts = [layer(part, mask=mask, cache=ring) for part in x.split(chunks, 1)]
    assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)
    assert not torch.allclose(whole, layer(x, mask=mask))


@torch.no_grad()
def test_a_map_in_the_place_of_ours_is_called_at_every_step(ways: list[str]) -> None:
    """As an adapter is, which shows the weight that it changes."""

    class Adapter(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner, self.weight = inner, inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + x.sum(-1, keepdim=True)

    layer, x = build(), stream()
    layer.kv_up = Adapter(layer.kv_up)  # type: ignore[assignment]
    whole, cache = layer(x, mask=mh.Causal()), mh.GrowingCache()
    parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([9, 1, 1], 1)]
    assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)
    assert set(ways) == {"expanded"}


def test_autocast_computes_in_its_dtype() -> None:
    layer, x = build().float(), stream().float()
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = layer.with_weights(x, mask=mh.Causal())
        cache = mh.GrowingCache()
        parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([9, 1, 1], 1)]
    assert out.dtype == weights.dtype == cache.read().k.dtype == torch.bfloat16
    assert_close(out.float(), layer(x, mask=mh.Causal()), atol=0.1, rtol=0.1)
    assert_close(torch.cat(parts, 1), out, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_on_both_ways(dtype: torch.dtype) -> None:
    layer, x, cache = build(), stream(), mh.GrowingCache()
    exact = layer(x, mask=mh.Causal())
    layer, x = layer.to(dtype), x.to(dtype)
    parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([9, 1, 1], 1)]
    assert parts[0].dtype == dtype
    assert_close(torch.cat(parts, 1).double(), exact, atol=0.1, rtol=0.1)


def test_gradients_pass_through_both_ways(ways: list[str]) -> None:
    layer = build("biases")
    names = [name for name, _ in layer.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        given = {"mask": mh.Causal(), "cache": mh.GrowingCache()}
        first = torch.func.functional_call(layer, named, (x[:, :3],), given)
        return torch.cat(
            (first, torch.func.functional_call(layer, named, (x[:, 3:],), given)), dim=1
        )

    x = stream(1, 4).requires_grad_()
    assert torch.autograd.gradcheck(call, (x, *layer.parameters()), fast_mode=True)
    assert {"absorbed", "expanded"} == set(ways)


@torch.no_grad()
def test_compiled_steps_over_a_fixed_room_are_two_graphs() -> None:
    torch._dynamo.reset()
    layer, x, cache = build(), stream(length=12), mh.FixedCache(16)
    whole = layer(x, mask=mh.Causal())
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="eager")
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        parts = [compiled(p, mask=mh.Causal(), cache=cache) for p in x.split([4] + [1] * 8, 1)]
    assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("bits", [8, 4])
def test_a_cache_that_rounds_stays_near(bits: int) -> None:
    layer, x = build(), stream(length=200)
    whole = layer(x, mask=mh.Causal())
    cache = mh.QuantizedCache(bits, recent=8, group=16)  # type: ignore[arg-type]
    parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([150, 25, 25], 1)]
    far = (torch.cat(parts, 1) - whole).norm() / whole.norm()
    assert 0 < far < (0.01 if bits == 8 else 0.15)


@torch.no_grad()
@pytest.mark.parametrize("kind", [*CACHES, "int8", "int4"])
def test_the_cache_holds_latents_alone_and_its_size_is_foretold(kind: str) -> None:
    """One head of latent_dim + the rotary's width, and no values."""
    made = {**CACHES, "int8": mh.QuantizedCache, "int4": lambda: mh.QuantizedCache(4)}[kind]
    layer, cache = build(), made()
    promised = mh.predict_bytes(
        cache, 37, num_kv_heads=1, head_dim=18, value_dim=0, batch=2, dtype=F64
    )
    layer(stream(length=37), mask=mh.Causal(), cache=cache)
    assert cache.memory_bytes() == promised
    if kind == "growing":
        assert promised == 2 * 37 * 18 * 8
        told = mh.compare_memory(
            37, num_layers=2, num_heads=4, head_dim=4, latent_dim=18, dtype=F64
        )
        assert told["MLA"] == promised


@torch.no_grad()
@pytest.mark.parametrize("kind", CACHES)
def test_caches_of_latents_travel(kind: str, tmp_path) -> None:
    layer, x, cache = build(), stream(), CACHES[kind]()
    layer(x[:, :6], mask=mh.Causal(), cache=cache)
    layer(x[:, 6:8], mask=mh.Causal(), cache=cache)
    cache.rollback(1)
    cache.save(tmp_path / "cache.safetensors")
    others = {
        "loaded": type(cache).load(tmp_path / "cache.safetensors"),
        "copied": copy.deepcopy(cache),
        "turned around": cache.split(torch.tensor([1, 0])),
    }
    out = layer(x[:, 7:8], mask=mh.Causal(), cache=cache)
    assert_close(out, layer(x[:, :8], mask=mh.Causal())[:, 7:])
    for name, other in others.items():
        order = [1, 0] if name == "turned around" else [0, 1]
        found = layer(x[order][:, 7:8], mask=mh.Causal(), cache=other)
        assert_close(found, out[order], msg=name)
    one = CACHES[kind]()
    layer(x[:1, :3], mask=mh.Causal(), cache=one)
    one.merge(cache)
    joined = layer(torch.cat((x[:1, 3:4], x[:, 8:9])), mask=mh.Causal(), cache=one)
    assert_close(joined[0], layer(x[:1, :4], mask=mh.Causal())[0, 3:])
    assert_close(joined[1:], layer(x[:, :9], mask=mh.Causal())[:, 8:])


def test_mistakes_are_named() -> None:
    with pytest.raises(OptionError, match="latent_dim must be an int of at least 1"):
        mh.LatentAttention(16, 4, 0, head_dim=4)
    with pytest.raises(CacheError, match="the cache of a LatentAttention must hold a text"):
        build()(stream(), cache=mh.CrossCache())
