import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.errors import CacheError, OptionError
from manyheads.layers import skinny
from manyheads.layers.copies import Copies
from manyheads.models.quick import QuickDecoder, quick_form

LLAMA = mh.DecoderConfig.preset("tiny")
STYLES = {
    "llama": LLAMA,
    "gpt": mh.DecoderConfig(
        **{"vocab_size": 64, "d_model": 24, "num_heads": 3, "num_layers": 3, "d_hidden": 32},
        **{"norm": "layer", "activation": "gelu_tanh", "bias": True, "tied": True},
        **{"positions": "learned", "max_length": 40},
    ),
    "qwen": dataclasses.replace(LLAMA, bias="qkv", tied=False, eps=1e-6),
    "llama 3": dataclasses.replace(
        LLAMA, head_dim=6, num_kv_heads=1, rotary_scaling=mh.Llama3Scaling(8.0, original_length=8)
    ),
    "window": dataclasses.replace(LLAMA, window=4),
}
KINDS: dict[str, Callable[[], Callable[[], Cache]]] = {
    "growing": lambda: mh.GrowingCache,
    "fixed": lambda: lambda: mh.FixedCache(40),
    "paged": lambda: lambda: mh.PagedCache(BlockPool(4, blocks=64)),
    "ring": lambda: lambda: mh.RingCache(4, undo=8),
    "ring with first": lambda: lambda: mh.RingCache(4, keep_first=2),
    "quantised": lambda: lambda: mh.QuantizedCache(8, recent=4),
}
TOKENS = torch.randint(63, (3, 7), generator=torch.Generator().manual_seed(1))
LEFT = torch.tensor([[*range(7)], [-1, -1, -1, *range(4)], [-1, *range(6)]])


def model(config: mh.DecoderConfig = LLAMA, dtype: torch.dtype = torch.float64) -> mh.Decoder:
    """Weights large enough that a wrong token changes the logits."""
    torch.manual_seed(0)
    decoder = mh.Decoder(config, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return decoder.to(dtype)


def quick(decoder: mh.Decoder) -> QuickDecoder:
    form = quick_form(decoder)
    assert form is not None
    return form


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each call of a quick form read."""
    made: list[int] = []
    whole = QuickDecoder.__call__

    def call(self: QuickDecoder, tokens: Tensor, caches: list[Cache]) -> Tensor:
        made.append(tokens.shape[1])
        return whole(self, tokens, caches)

    monkeypatch.setattr(QuickDecoder, "__call__", call)
    return made


@torch.no_grad()
@pytest.mark.parametrize("positions", [None, LEFT], ids=["plain", "left padding"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", STYLES)
def test_steps_give_what_the_model_gives(style: str, kind: str, positions: Tensor | None) -> None:
    decoder = model(STYLES[style])
    form, make = quick(decoder), KINDS[kind]()
    ours, theirs = decoder.new_caches(make), decoder.new_caches(make)
    if not form.serves(TOKENS, ours):
        assert kind == "ring with first"
        return
    for caches in (ours, theirs):
        decoder(TOKENS, positions=positions, caches=caches)
    for length in (1, 1, 3, 1):
        tokens = TOKENS[:, :length]
        assert_close(form(tokens, ours), decoder(tokens, caches=theirs), rtol=0, atol=1e-10)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.read().k, other.read().k, rtol=0, atol=1e-10)
        assert torch.equal(one.positions, other.positions)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_half_precision_differs_by_its_rounding(style: str, dtype: torch.dtype) -> None:
    decoder = model(STYLES[style], dtype)
    exact = copy.deepcopy(decoder).double()
    form = quick(decoder)
    caches = [m.new_caches() for m in (decoder, decoder, exact)]
    for m, held in zip((decoder, decoder, exact), caches, strict=True):
        m(TOKENS, caches=held)
    step = TOKENS[:, :1]
    found, plain, wanted = (
        form(step, caches[0]), decoder(step, caches=caches[1]), exact(step, caches=caches[2])
    )  # fmt: skip
    assert found.dtype == dtype
    mistake = (plain.double() - wanted).norm()
    assert (found.double() - wanted).norm() <= 2 * mistake


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("style", ["llama", "gpt", "qwen"])
def test_weights_in_another_order_say_the_same(
    style: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last order there is always gains, from the second step on.
    for name, value in (("PATIENCE", 2), ("_ORDERS", {}), ("_COPIES", Copies())):
        monkeypatch.setattr(skinny, name, value)
    monkeypatch.setattr(skinny, "fastest", lambda calls: len(calls) - 1)
    decoder = model(STYLES[style], dtype)
    exact = copy.deepcopy(decoder).double()
    form, caches, others = quick(decoder), decoder.new_caches(), exact.new_caches()
    decoder(TOKENS, caches=caches), exact(TOKENS, caches=others)
    for _ in range(4):
        found, wanted = form(TOKENS[:, :1], caches), exact(TOKENS[:, :1], caches=others)
    assert form.output._copies and all(layer.inward._copies for layer in form.layers)
    size = wanted.abs().max()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.01}[dtype]
    assert (found.double() - wanted).abs().max() <= tolerance * size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["llama", "gpt", "window"])
def test_the_text_is_the_same(
    style: str, kind: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = model(STYLES[style], torch.float32)
    prompts = [[5, 6, 7, 8, 9], [10, 11], [12]]
    text = mh.generate(decoder, prompts, max_new_tokens=12, cache=KINDS[kind]())
    assert calls == ([] if kind == "ring with first" else [1] * 11)
    monkeypatch.setattr(QuickDecoder, "serves", lambda *_: False)
    assert torch.equal(text, mh.generate(decoder, prompts, max_new_tokens=12, cache=KINDS[kind]()))


def test_beams_and_drafts_take_it_too(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, draft = model(dtype=torch.float32), model(STYLES["window"], torch.float32)

    def texts() -> list[Tensor]:
        drafted = mh.generate(decoder, TOKENS[:1], max_new_tokens=10, draft=mh.Draft(draft))
        return [drafted, mh.beam_search(decoder, TOKENS, beams=3, max_new_tokens=6).tokens]

    quickly = texts()
    assert max(calls) > 1 and 1 in calls
    monkeypatch.setattr(QuickDecoder, "serves", lambda *_: False)
    for one, other in zip(quickly, texts(), strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
def test_weights_that_change_are_seen() -> None:
    decoder = model()
    form, caches, fresh = quick(decoder), decoder.new_caches(), decoder.new_caches()
    decoder(TOKENS, caches=caches), decoder(TOKENS, caches=fresh)
    decoder.layers[1].feed_forward.up.weight.mul_(1.5)
    decoder.norm.weight.mul_(0.5)
    step = TOKENS[:, :1]
    assert form.serves(step, caches)
    assert_close(form(step, caches), decoder(step, caches=fresh), rtol=0, atol=1e-10)


def hook(decoder: mh.Decoder) -> object:
    return decoder.layers[1].self_attention.v_proj.register_forward_hook(lambda *_: None)


def hook_before(decoder: mh.Decoder) -> object:
    return decoder.layers[0].register_forward_pre_hook(lambda *_: None)


def hook_all(decoder: mh.Decoder) -> object:
    return decoder.register_forward_hook(lambda *_: None)


def other_module(decoder: mh.Decoder) -> None:
    decoder.layers[0].feed_forward.down = copy.deepcopy(decoder.layers[0].feed_forward.down)


def other_weight(decoder: mh.Decoder) -> None:
    linear = decoder.layers[0].feed_forward.down
    linear.weight = nn.Parameter(linear.weight * 2)


def computed_weight(decoder: mh.Decoder) -> None:
    parametrizations.spectral_norm(decoder.layers[0].feed_forward.down)


def patched(decoder: mh.Decoder) -> None:
    layer = decoder.layers[0].feed_forward
    layer.forward = layer.forward  # type: ignore[method-assign]


def other_dtype(decoder: mh.Decoder) -> None:
    decoder.float()


@pytest.mark.parametrize(
    "change",
    [hook, hook_before, hook_all, other_module, other_weight, computed_weight, patched,
     other_dtype],
)  # fmt: skip
def test_whoever_changes_a_model_midway_is_heard(change: Callable[[mh.Decoder], object]) -> None:
    decoder = model()
    form, caches = quick(decoder), decoder.new_caches()
    with torch.no_grad():
        assert form.serves(TOKENS, caches)
        change(decoder)
        assert not form.serves(TOKENS, caches)


@pytest.mark.parametrize("change", [hook, hook_all, computed_weight, patched])
def test_a_model_with_more_than_weights_has_no_quick_form(
    change: Callable[[mh.Decoder], object],
) -> None:
    decoder = model()
    change(decoder)
    assert quick_form(decoder) is None
    assert mh.generate(decoder, TOKENS, max_new_tokens=3).shape == (3, 3)


def test_subclasses_and_other_layers_have_no_quick_form() -> None:
    class Mine(mh.Decoder):
        pass

    assert quick_form(Mine(LLAMA)) is None
    assert quick_form(nn.Linear(2, 2)) is None
    decoder = model()
    decoder.layers[0].self_attention.q_norm = nn.LayerNorm(
        decoder.layers[0].self_attention.head_dim
    )
    assert quick_form(decoder) is None


def test_gradients_autocast_and_long_chunks_are_for_the_model() -> None:
    decoder = model(dtype=torch.float32)
    form, caches = quick(decoder), decoder.new_caches()
    assert not form.serves(TOKENS, caches)  # a gradient may be asked for
    with torch.no_grad():
        assert form.serves(TOKENS, caches)
        assert not form.serves(TOKENS.repeat(5, 1), caches)
        assert not form.serves(TOKENS[:0], caches)
        with torch.autocast("cpu", torch.bfloat16):
            assert not form.serves(TOKENS, caches)
        with FlopCounterMode(display=False):
            assert not form.serves(TOKENS, caches)


def test_the_probe_sees_every_call(calls: list[int]) -> None:
    decoder = model(dtype=torch.float32)
    with mh.probe.watch(decoder) as found:
        mh.generate(decoder, TOKENS, max_new_tokens=4)
    assert len(found) == 4 * len(decoder.layers)
    assert calls == []


@torch.no_grad()
def test_a_refusal_leaves_the_caches_alone() -> None:
    decoder = model()
    form, caches = quick(decoder), decoder.new_caches(lambda: mh.FixedCache(8))
    decoder(TOKENS, caches=caches)
    for wrong, error in ((TOKENS[:, :2], CacheError), (TOKENS[:, :1] + 1000, OptionError)):
        with pytest.raises(error):
            form(wrong, caches)
        assert [cache.length for cache in caches] == [7] * len(decoder.layers)


def test_text_of_a_model_in_training_is_that_of_its_evaluation() -> None:
    config = dataclasses.replace(LLAMA, dropout=0.5)
    decoder = model(config, torch.float32)
    text = mh.generate(decoder, TOKENS, max_new_tokens=6)
    decoder.train()
    assert torch.equal(mh.generate(decoder, TOKENS, max_new_tokens=6), text)
    assert decoder.layers[0].feed_forward.training
