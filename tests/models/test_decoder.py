import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.errors import CacheError, DTypeError, OptionError, PositionError

LLAMA = mh.DecoderConfig.preset("tiny")
GPT = mh.DecoderConfig(
    **{"vocab_size": 64, "d_model": 24, "num_heads": 3, "num_layers": 3, "d_hidden": 32},
    **{"norm": "layer", "activation": "gelu_tanh", "bias": True, "tied": True},
    **{"positions": "learned", "max_length": 20},
)
STYLES = {
    "llama": LLAMA,
    "gpt": GPT,
    "qwen": dataclasses.replace(LLAMA, bias="qkv", tied=False, eps=1e-6),
    "wide heads, llama 3": dataclasses.replace(
        LLAMA, head_dim=6, num_kv_heads=1, rotary_scaling=mh.Llama3Scaling(8.0, original_length=8)
    ),
    "window": dataclasses.replace(LLAMA, window=4),
}
TOKENS = torch.randint(63, (2, 11), generator=torch.Generator().manual_seed(1))
LEFT = torch.tensor([[*range(11)], [-1, -1, -1, *range(8)]])


def model(config: mh.DecoderConfig = LLAMA) -> mh.Decoder:
    """Weights large enough that a wrong token changes the logits."""
    decoder = mh.Decoder(config, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return decoder


@pytest.fixture(params=STYLES)
def decoder(request: pytest.FixtureRequest) -> mh.Decoder:
    return model(STYLES[request.param])


CACHES: dict[str, Callable[[], Callable[[], Cache]]] = {
    "growing": lambda: mh.GrowingCache,
    "fixed": lambda: lambda: mh.FixedCache(16),
    "paged": lambda: lambda: mh.PagedCache(BlockPool(4, blocks=16)),
    "exact part of quantised": lambda: lambda: mh.QuantizedCache(8, recent=16),
}


@torch.no_grad()
@pytest.mark.parametrize("positions", [None, LEFT], ids=["plain", "left padding"])
@pytest.mark.parametrize("kind", CACHES)
def test_any_split_gives_what_one_pass_gives(
    decoder: mh.Decoder, kind: str, positions: Tensor | None
) -> None:
    whole, caches = decoder(TOKENS, positions=positions), decoder.new_caches(CACHES[kind]())
    parts = []
    for start, stop in ((0, 5), (5, 6), (6, 9), (9, 10), (10, 11)):
        # After the prompt the caches know by themselves where each row goes on.
        at = positions[:, start:stop] if positions is not None and start == 0 else None
        parts.append(decoder(TOKENS[:, start:stop], positions=at, caches=caches))
    there = torch.ones_like(TOKENS, dtype=torch.bool) if positions is None else positions >= 0
    assert_close(torch.cat(parts, 1)[there], whole[there], rtol=0, atol=1e-10)
    assert [cache.length for cache in caches] == [11] * len(decoder.layers)


@torch.no_grad()
def test_a_ring_serves_a_window() -> None:
    decoder = model(STYLES["window"])
    whole, caches = decoder(TOKENS), decoder.new_caches(lambda: mh.RingCache(4))
    parts = [decoder(part, caches=caches) for part in TOKENS.split(2, dim=1)]
    assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    assert caches[0].length <= 5


@torch.no_grad()
def test_a_row_padded_on_the_left_gives_what_it_gives_alone(decoder: mh.Decoder) -> None:
    together, alone = decoder(TOKENS, positions=LEFT), decoder(TOKENS[1:, 3:])
    assert_close(together[1:, 3:], alone, rtol=0, atol=1e-10)


@torch.no_grad()
def test_nobody_sees_the_future_nor_what_a_mask_hides(decoder: mh.Decoder) -> None:
    other = TOKENS.clone()
    other[:, 6] = (other[:, 6] + 1) % 64
    before, after = decoder(TOKENS), decoder(other)
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:10] - after[:, 6:10]).abs().amax(dim=-1).min() > 1e-6
    keep = torch.ones_like(TOKENS, dtype=torch.bool)
    keep[:, 6] = False
    before, after = (decoder(x, mask=mh.Padding(keep)) for x in (TOKENS, other))
    assert torch.equal(before[keep], after[keep])
    ids = torch.arange(11).expand(2, -1) // 6
    packed = decoder(TOKENS, mask=mh.Documents(ids), positions=torch.arange(11) % 6)
    assert_close(packed[:, 6:], decoder(TOKENS[:, 6:]), rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_window_reaches_as_far_as_its_layers() -> None:
    decoder = model(STYLES["window"])  # two layers of four tokens: the last sees seven
    for place, seen in ((3, False), (4, True)):
        other = TOKENS.clone()
        other[:, place] = (other[:, place] + 1) % 64
        assert torch.equal(decoder(other)[:, -1], decoder(TOKENS)[:, -1]) is not seen


@torch.no_grad()
def test_the_last_logits_alone_and_every_weight(decoder: mh.Decoder) -> None:
    whole = decoder(TOKENS)
    assert_close(decoder(TOKENS, last_only=True), whole[:, -1:])
    logits, weights = decoder.with_weights(TOKENS)
    assert_close(logits, whole)
    assert list(weights) == [f"layers.{index}" for index in range(len(decoder.layers))]
    for each in weights.values():
        assert each.shape == (2, decoder.config.num_heads, 11, 11)
        assert_close(each.sum(dim=-1), torch.ones(each.shape[:3], dtype=each.dtype))


class Broken(RuntimeError):
    pass


@torch.no_grad()
@pytest.mark.parametrize("kind", CACHES)
def test_if_one_layer_fails_no_cache_has_moved(kind: str) -> None:
    decoder = model(GPT)
    caches = decoder.new_caches(CACHES[kind]())
    decoder(TOKENS[:, :5], caches=caches)
    held = [cache.read() for cache in caches]

    def fail(*_: object) -> None:
        raise Broken

    hook = decoder.layers[2].feed_forward.register_forward_pre_hook(fail)
    with pytest.raises(Broken):
        decoder(TOKENS[:, 5:8], caches=caches)
    hook.remove()
    assert [cache.length for cache in caches] == [5] * 3
    for cache, before in zip(caches, held, strict=True):
        assert torch.equal(cache.read().k, before.k)
    assert_close(decoder(TOKENS[:, 5:], caches=caches), decoder(TOKENS)[:, 5:])


@torch.no_grad()
def test_too_long_a_text_is_refused_before_any_work() -> None:
    for config in (GPT, dataclasses.replace(LLAMA, max_length=20)):
        decoder = model(config)
        caches, calls = decoder.new_caches(), []
        decoder(TOKENS, caches=caches)
        decoder.layers[0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        rule = "a text must be no longer than max_length=20 tokens; got one that reaches position"
        with pytest.raises(PositionError, match=rule):
            decoder(TOKENS, caches=caches)
        for positions in (10, LEFT + 10):
            with pytest.raises(PositionError, match=f"{rule} 20"):
                decoder(TOKENS, positions=positions)
        assert calls == []
        assert [cache.length for cache in caches] == [11] * len(caches)
        assert decoder(TOKENS[:, :9], caches=caches).shape == (2, 9, 64)


def test_what_does_not_fit_is_refused() -> None:
    decoder = model()
    with pytest.raises(OptionError, match="tokens must hold token ids from 0 to 63; got 0 to 64"):
        decoder(torch.tensor([[0, 64]]))
    with pytest.raises(DTypeError, match="tokens must be int32 or int64 token ids"):
        decoder(torch.zeros(1, 2))
    with pytest.raises(CacheError, match="caches must be one for each of 2 layers; got 1"):
        decoder(TOKENS, caches=[mh.GrowingCache()])
    with pytest.raises(CacheError, match="a cache must serve one layer"):
        decoder(TOKENS, caches=[mh.GrowingCache()] * 2)
    for positions in (torch.arange(5), TOKENS.double()):
        with pytest.raises((PositionError, DTypeError), match="positions must be"):
            decoder(TOKENS, positions=positions)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_layers": 0}, "num_layers must be an int of at least 1"),
        ({"window": 0}, "window must be an int of at least 1"),
        ({"dropout": 1.0}, "dropout must be a number in"),
        ({"positions": "alibi"}, "positions must be 'learned' or 'rotary'; got positions='alibi'"),
        ({"positions": "learned"}, "max_length must be given with learned positions"),
        ({"norm": "batch"}, "a norm must be 'layer' or 'rms'; got 'batch'"),
        ({"bias": "kv"}, "bias must be True, False or 'qkv'; got bias='kv'"),
        ({"activation": "tanh"}, "activation must be one of relu, gelu, gelu_tanh, silu, swiglu"),
        ({"eps": float("nan")}, "eps must be a finite number above 0; got eps=nan"),
        ({"eps": -1e-5}, "eps must be a finite number above 0; got eps=-1e-05"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads=4"),
        (
            {"positions": "learned", "max_length": 8, "rotary_scaling": mh.LinearScaling(2.0)},
            "rotary_scaling must go with positions='rotary'",
        ),
    ],
)
def test_numbers_that_cannot_be_are_named(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        mh.Decoder(dataclasses.replace(LLAMA, **changes))


def test_every_parameter_learns(decoder: mh.Decoder) -> None:
    decoder.train()(TOKENS).logsumexp(dim=-1).square().sum().backward()
    silent = [name for name, p in decoder.named_parameters() if not p.grad.abs().sum() > 0]
    # A bias of all keys alike moves every score of a query alike, which softmax does not see.
    assert [name for name in silent if not name.endswith("k_proj.bias")] == []


def test_dropout_acts_in_training_alone() -> None:
    decoder = mh.Decoder(dataclasses.replace(GPT, dropout=0.5))
    assert not torch.equal(decoder(TOKENS), decoder(TOKENS))
    assert torch.equal(decoder.eval()(TOKENS), decoder(TOKENS))


def test_a_tied_matrix_is_one_wherever_the_model_goes(decoder: mh.Decoder) -> None:
    copies = [copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))]
    empty = mh.Decoder(decoder.config, device="meta", dtype=torch.float64)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assigned = copy.deepcopy(empty)
    assigned.load_state_dict(decoder.state_dict(), assign=True)
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(decoder.state_dict())
    for other in (*copies, copy.deepcopy(assigned), filled, copy.deepcopy(decoder).float()):
        logits, tied = other.eval()(TOKENS), other.config.tied
        assert_close(logits.double(), decoder(TOKENS), atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            other.embedding.tokens.weight[63] = 0  # which no text has
        changed = other(TOKENS)
        assert torch.equal(changed[..., :63], logits[..., :63])
        assert changed[..., 63].eq(0).all() if tied else torch.equal(changed, logits)
        assert ("output.weight" in other.state_dict()) is not tied


def test_weights_begin_anew_as_they_began(decoder: mh.Decoder) -> None:
    torch.manual_seed(5)
    fresh = mh.Decoder(decoder.config)
    lost = mh.Decoder(decoder.config, device="meta").to_empty(device="cpu")
    for parameter in lost.parameters():
        nn.init.constant_(parameter, torch.nan)
    lost.reset_parameters()
    for name, parameter in lost.named_parameters():
        assert_close(parameter.mean(), fresh.get_parameter(name).mean(), atol=0.02, rtol=0)
        assert_close(
            parameter.std(correction=0), fresh.get_parameter(name).std(correction=0),
            atol=0.006, rtol=0,
        )  # fmt: skip
    small = lost.layers[0].feed_forward.down.weight.std()
    assert small < 0.75 * lost.layers[0].feed_forward.up.weight.std()


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.no_grad()
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_a_decoding_step_is_one_graph_compiled_at_most_twice(style: str) -> None:
    decoder = model(STYLES[style])
    whole, caches = decoder(TOKENS), decoder.new_caches(lambda: mh.FixedCache(16))
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(decoder, fullgraph=True, backend=counter)
    parts = [decoder(TOKENS[:, :3], caches=caches)]
    parts += [step(TOKENS[:, i : i + 1], caches=caches) for i in range(3, 11)]
    assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-10)
    assert counter.frame_count <= 2


def test_a_size_is_asked_for_by_its_config() -> None:
    with pytest.raises(OptionError, match=r"config must be a DecoderConfig; got config='tiny'"):
        mh.Decoder("tiny")  # type: ignore[arg-type]
