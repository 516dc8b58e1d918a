import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import CacheError, MaskError, OptionError

F64 = torch.float64


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Stack(nn.Module):
    """Layers, each with a cache of its own."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            mh.EncoderLayer(8, 2, 16, norm="pre", rotary=mh.Rotary(4), dtype=F64)
            for _ in range(layers)
        )

    def forward(
        self, x: Tensor, caches: list[mh.FixedCache] | None, mask: mh.Mask, places: Tensor | None
    ) -> Tensor:
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x = layer(x, mask=mask, positions=places, cache=cache)
        return x


MASKS: dict[str, Callable[[int, int], mh.Mask]] = {
    "causal": lambda start, stop: mh.Causal(),
    "window": lambda start, stop: mh.Causal() & mh.Window(3),
    "padding": lambda start, stop: mh.Causal() & mh.Padding(KEEP[:, start:stop]),
    "documents": lambda start, stop: mh.Causal() & mh.Documents(IDS[:, start:stop]),
}
X = torch.randn(2, 12, 8, dtype=F64, generator=torch.Generator().manual_seed(3))
KEEP = torch.ones(2, 12, dtype=torch.bool)
KEEP[0, :2] = False
IDS = torch.arange(12).expand(2, 12) // 5


def read(
    model: Callable[..., Tensor], mask: str, caches: list[mh.FixedCache], first: int = 4
) -> Tensor:
    """A prompt, then steps of one token."""
    outs, start = [], 0
    for stop in range(first, 13):
        outs.append(model(X[:, start:stop], caches, MASKS[mask](start, stop), None))
        start = stop
    return torch.cat(outs, 1)


@torch.no_grad()
@pytest.mark.parametrize(
    ("mask", "reserved"),
    [
        ("causal", False),
        pytest.param("window", True, marks=pytest.mark.long),
        pytest.param("padding", False, marks=pytest.mark.long),
        pytest.param("documents", True, marks=pytest.mark.long),
    ],
)
def test_a_prompt_and_its_steps_compile_twice(mask: str, reserved: bool) -> None:
    """COMPILE-01: four tokens, then eight steps, in at most two graphs."""
    model, caches = Stack(2).eval(), [mh.FixedCache(16) for _ in range(2)]
    if reserved:
        for cache in caches:
            cache.reserve(torch.zeros(2, 2, 1, 4, dtype=F64), torch.zeros(2, 2, 1, 4, dtype=F64))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=counter)
    out = read(compiled, mask, caches)
    assert counter.frame_count <= 2
    keep = KEEP[..., None] if mask == "padding" else torch.ones(2, 12, 1, dtype=torch.bool)
    whole = model(X, None, MASKS[mask](0, 12), None)
    assert_close(out * keep, whole * keep)
    assert [cache.length for cache in caches] == [12, 12]


@pytest.mark.long
@torch.no_grad()
def test_other_texts_use_the_graphs_again() -> None:
    model = Stack().eval()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=counter)
    whole = model(X, None, mh.Causal(), None)
    for _ in range(3):
        caches = [mh.FixedCache(16)]
        assert_close(read(compiled, "causal", caches), whole)
    assert counter.frame_count <= 2


@torch.no_grad()
def test_steps_may_be_compiled_or_not_and_rolled_back_between() -> None:
    model, caches = Stack().eval(), [mh.FixedCache(16)]
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    whole, outs = model(X, None, mh.Causal(), None), [model(X[:, :3], caches, mh.Causal(), None)]
    for step in range(3, 12):
        run = compiled if step % 3 else model
        run(torch.full_like(X[:, :1], torch.nan), caches, mh.Causal(), None)
        for cache in caches:
            cache.rollback(1)
        outs.append(run(X[:, step : step + 1], caches, mh.Causal(), None))
        if step == 7:
            for cache in caches:
                cache.reorder(torch.tensor([0, 1]))
    assert_close(torch.cat(outs, 1), whole)


@torch.no_grad()
def test_left_padded_prompts_compile_by_positions() -> None:
    model, caches = Stack().eval(), [mh.FixedCache(16) for _ in range(2)]
    places = torch.arange(4) - torch.tensor([[0], [2]])
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    compiled(X[:, :4], caches, mh.Causal(), places)
    out = torch.cat([compiled(x, caches, mh.Causal(), None) for x in X[:, 4:8].split(1, 1)], 1)
    assert_close(out[:1], model(X[:1, :8], None, mh.Causal(), None)[:, 4:])
    assert_close(out[1:], model(X[1:, 2:8], None, mh.Causal(), None)[:, 2:])


@pytest.mark.long
@torch.no_grad()
def test_inductor_gives_the_same_text() -> None:
    model, caches = Stack().eval(), [mh.FixedCache(16)]
    compiled = torch.compile(model, fullgraph=True)
    assert_close(read(compiled, "causal", caches), model(X, None, mh.Causal(), None))


@torch.no_grad()
def test_its_room_is_made_once() -> None:
    cache, k = mh.FixedCache(9), torch.zeros(2, 2, 1, 3)
    assert cache.memory_bytes() == 0
    places = set()
    for _ in range(9):
        cache.append(k, k)
        places.add(cache.read().k.data_ptr())
        assert cache.memory_bytes() == 2 * 2 * 2 * 9 * 3 * 4
    assert len(places) == 1
    with pytest.raises(CacheError, match=r"got 9 and 1 more in room for 9.* FixedCache\(10\)"):
        cache.append(k, k)
    assert cache.length == 9


def test_gradients_through_chunks_are_those_of_one_pass() -> None:
    layer = mh.MultiHeadAttention(8, 2, rotary=mh.Rotary(4), dtype=F64)
    x = X[:, :7].clone().requires_grad_()
    out = layer(x, mask=mh.Causal())
    weight = torch.randn_like(out)
    (right,) = torch.autograd.grad((out * weight).sum(), x)
    cache = mh.FixedCache(8)
    parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split([3, 1, 2, 1], 1)]
    (found,) = torch.autograd.grad((torch.cat(parts, 1) * weight).sum(), x)
    assert_close(found, right)


def test_it_is_passed_from_inference_to_training_and_back() -> None:
    layer = mh.MultiHeadAttention(8, 2, dtype=F64)
    whole, cache, parts = layer(X, mask=mh.Causal()), mh.FixedCache(12), []
    modes = (torch.inference_mode, torch.enable_grad, torch.no_grad, torch.inference_mode)
    for mode, part in zip(modes * 3, X.split(1, 1), strict=True):
        with mode():
            keep = torch.ones(2, 1, dtype=torch.bool)
            parts.append(layer(part, mask=mh.Causal() & mh.Padding(keep), cache=cache))
            if len(parts) == 7:
                cache.rollback(1)
                layer(part, mask=mh.Causal(), cache=cache)
    assert_close(torch.cat([part.detach().clone() for part in parts], 1), whole)
    parts[5].sum().backward()
    assert layer.q_proj.weight.grad is not None


@torch.no_grad()
def test_copies_live_by_themselves() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2, dtype=F64), mh.FixedCache(12)
    layer(X[:, :3], mask=mh.Causal(), cache=cache)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        out = layer(X[:, 3:5], mask=mh.Causal(), cache=other)
        assert_close(out, layer(X[:, :5], mask=mh.Causal())[:, 3:])
        assert (cache.length, other.length) == (3, 5)


@torch.no_grad()
def test_it_is_used_for_a_text_after_the_other() -> None:
    layer, cache = mh.MultiHeadAttention(8, 2, dtype=F64), mh.FixedCache(12)
    for x in (X, X[1:], X[:, 2:]):
        parts = [layer(part, mask=mh.Causal(), cache=cache) for part in x.split(5, 1)]
        assert_close(torch.cat(parts, 1), layer(x, mask=mh.Causal()))
        cache.rollback(cache.length)
        assert cache.tokens is None


def test_what_is_refused_is_named() -> None:
    with pytest.raises(OptionError, match="length must be an int of at least 1"):
        mh.FixedCache(0)
    cache, k = mh.FixedCache(4), torch.zeros(1, 1, 3, 2)
    with pytest.raises(CacheError, match="a FixedCache must hold all tokens of a text; got 0 and"):
        cache.append(k.repeat(1, 1, 2, 1), k.repeat(1, 1, 2, 1))
    cache.append(k, k)
    with pytest.raises(CacheError, match="room must be made before the first token; got a cache"):
        cache.reserve(k, k)
    with pytest.raises(CacheError, match="count must be at most the 3 tokens"):
        cache.rollback(4)
    other = mh.FixedCache(9)
    other.append(k.repeat(1, 1, 2, 1), k.repeat(1, 1, 2, 1))
    with pytest.raises(CacheError, match="rows that are merged must fit the room for 4 tokens"):
        cache.merge(other)
    assert (cache.length, other.length) == (3, 6)


@torch.no_grad()
def test_documents_are_told_of_all_chunks_or_of_none() -> None:
    ids, layer = torch.zeros(2, 2, dtype=torch.long), mh.MultiHeadAttention(8, 2, dtype=F64)
    message = r"Add Documents\(\.\.\.\) to the mask of every"
    for first, then in ((None, mh.Documents(ids)), (mh.Documents(ids), mh.Causal())):
        cache = mh.FixedCache(8)
        layer(X[:, :2], mask=first, cache=cache)
        with pytest.raises(MaskError, match=message):
            layer(X[:, 2:4], mask=then, cache=cache)
        assert cache.length == 2
