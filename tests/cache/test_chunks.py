"""However a text reaches a layer, in whatever chunks, it comes out as in one pass."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache import CACHES, BlockPool, Cache
from manyheads.laws import LawBroken, check_cache
from manyheads.masks import Tokens

LENGTH, F64 = 8, torch.float64
KINDS: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(LENGTH),
    "ring": lambda: mh.RingCache(LENGTH + 1),
    "quantized": mh.QuantizedCache,
    "paged": lambda: mh.PagedCache(BlockPool(3)),
}
every_kind = st.sampled_from(list(KINDS))
LAYER = mh.MultiHeadAttention(
    8, 4, num_kv_heads=2, qk_norm="rms", rotary=mh.Rotary(2), dtype=F64
).requires_grad_(False)
X = torch.randn(3, LENGTH, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0] * 8, [0, 1, 1, 1, 1, 1, 1, 3]])
TAGS = IDS % 2 == 1


def rule(name: str, keep: Tensor, first: int, last: int) -> mh.Mask:
    """What is said of the tokens from `first` on, up to `last`."""
    new = slice(first, last)
    written = (torch.arange(LENGTH)[:, None] * 3 + torch.arange(LENGTH) * 5) % 4 != 1
    rules = {
        "causal": mh.Causal(),
        "window": mh.Causal() & mh.Window(3),
        "documents": mh.Causal() & mh.Documents(IDS[:, new]),
        "global": mh.Causal() & (mh.Window(2) | mh.Global((0, 2))),
        "tags": mh.Causal() & (mh.Window(2) | mh.Global(TAGS[:, new])),
        "heads": mh.PerHead([mh.Causal() & mh.Window(w) for w in (1, 2, 3, 9)]),
        "written": mh.Causal() & mh.Dense(written[new, :last]),
        "rule": mh.Causal() & mh.Rule(lambda head, q, kv: (q + kv + head) % 3 != 0, "thirds"),
    }
    return rules[name] & mh.Padding(keep[:, new])


@st.composite
def splits(draw: st.DrawFn) -> list[int]:
    cuts = draw(st.lists(st.integers(0, LENGTH), max_size=6).map(sorted))
    edges = [0, *cuts, LENGTH]
    return [b - a for a, b in pairwise(edges)]


@settings(max_examples=60)
@given(
    splits(),
    st.sampled_from(
        ["causal", "window", "documents", "global", "tags", "heads", "written", "rule"]
    ),
    st.tuples(*[st.tuples(st.integers(0, 3), st.integers(5, LENGTH))] * 3),
    st.lists(st.integers(0, 2), max_size=6),
    every_kind,
)
def test_any_split_with_padding_on_both_sides_and_second_thoughts(
    split: list[int],
    name: str,
    spans: tuple[tuple[int, int], ...],
    forgotten: list[int],
    kind: str,
) -> None:
    places = torch.arange(LENGTH)
    keep = torch.stack([(places >= left) & (places < right) for left, right in spans])
    x = X.masked_fill(~keep[..., None], torch.nan)
    whole = LAYER(x, mask=rule(name, keep, 0, LENGTH), positions=places)
    cache, parts, start = KINDS[kind](), [], 0
    for index, length in enumerate(split):
        stop = start + length
        options = {"mask": rule(name, keep, start, stop), "positions": places[start:stop]}
        count = min(length, forgotten[index]) if index < len(forgotten) else 0
        if count:  # tokens that were a mistake
            LAYER(-x[:, start:stop], cache=cache, **options)
            cache.rollback(length)
        parts.append(LAYER(x[:, start:stop], cache=cache, **options))
        start = stop
    assert_close(torch.cat(parts, 1)[keep], whole[keep])


@settings(max_examples=30)
@given(splits(), st.tuples(*[st.integers(0, LENGTH - 1)] * 3), every_kind)
def test_left_padding_by_positions_equals_each_row_alone(
    split: list[int], pads: tuple[int, int, int], kind: str
) -> None:
    places = torch.arange(LENGTH) - torch.tensor(pads)[:, None]
    x, cache = X.masked_fill((places < 0)[..., None], torch.nan), KINDS[kind]()
    mask, start, parts = mh.Causal() & (mh.Window(3) | mh.Global(0)), 0, []
    for length in split:
        stop = start + length
        part = x[:, start:stop]
        parts.append(LAYER(part, mask=mask, positions=places[:, start:stop], cache=cache))
        start = stop
    out = torch.cat(parts, 1)
    for row, pad in enumerate(pads):
        assert_close(out[row : row + 1, pad:], LAYER(x[row : row + 1, pad:], mask=mask))


def test_ragged_prompts_go_on_each_from_its_own_end() -> None:
    lengths, cache = torch.tensor([3, 5, 1]), mh.GrowingCache()
    prompt, steps = X[:, :5], X[:, 5:]
    LAYER(prompt, mask=mh.Causal() & mh.Padding(lengths=lengths), cache=cache)
    outs = [LAYER(step, mask=mh.Causal(), cache=cache) for step in steps.split(1, 1)]
    for row, length in enumerate(lengths):
        alone = torch.cat((prompt[row, :length], steps[row]))[None]
        right = LAYER(alone, mask=mh.Causal())[:, length:]
        assert_close(torch.cat(outs, 1)[row : row + 1], right)


@pytest.mark.parametrize("length", [3, torch.tensor([1, 3, 2])], ids=["one", "each row"])
def test_a_prefix_that_comes_at_once_is_read_both_ways(length: int | Tensor) -> None:
    mask, cache = mh.Causal() | mh.Prefix(length), mh.GrowingCache()
    parts = [LAYER(part, mask=mask, cache=cache) for part in X.split([4, 1, 3], 1)]
    assert_close(torch.cat(parts, 1), LAYER(X, mask=mask))


def test_a_mask_written_out_must_span_the_old_keys_too() -> None:
    cache = mh.GrowingCache()
    LAYER(X[:, :5], mask=mh.Causal(), cache=cache)
    with pytest.raises(mh.errors.MaskError, match="With a cache it must span all keys"):
        LAYER(X[:, 5:], mask=torch.ones(3, 3, dtype=torch.bool), cache=cache)
    assert cache.length == 5
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert_close(LAYER(X[:, 5:], mask=seen[5:], cache=cache), LAYER(X, mask=seen)[:, 5:])


def test_layers_of_a_stack_step_together() -> None:
    layers = [mh.EncoderLayer(8, 2, 16, norm="pre", rotary=mh.Rotary(4), dtype=F64).eval()
              for _ in range(2)]  # fmt: skip
    caches = [mh.GrowingCache() for _ in layers]

    def run(x: Tensor, held: list[mh.GrowingCache | None]) -> Tensor:
        for layer, cache in zip(layers, held, strict=True):
            x = layer(x, mask=mh.Causal(), cache=cache)
        return x

    parts = [run(part, list(caches)) for part in X.split([4, 1, 3], 1)]
    assert_close(torch.cat(parts, 1), run(X, [None, None]))
    with pytest.raises(mh.errors.CacheError, match="a cache must serve one layer"):
        run(X, [caches[0], caches[0]])


class Forgets(mh.GrowingCache):
    """Forgets what was said of padding when rows are reordered."""

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        assert self._tokens is not None
        held = self._tokens
        self._tokens = Tokens(held.length, held.position, None, held.marks)


class Shares(mh.GrowingCache):
    """Writes over what was rolled back while another chunk still reads it, one token late."""

    def rollback(self, count: int) -> None:
        super().rollback(max(count - 1, 0))


class Takes(mh.GrowingCache):
    """Takes keys of another dtype."""

    def append(self, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> object:  # type: ignore[override]
        return super().append(k.double(), v.double(), tokens)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Forgets, "any_history_equals_one_pass"),
        (Shares, "rollback_forgets"),
        (Takes, "a_refusal_changes_nothing"),
    ],
)
def test_the_laws_find_a_broken_cache(broken: type[Cache], law: str) -> None:
    with pytest.raises(LawBroken, match=law):
        check_cache(broken)


def test_the_laws_find_a_context_that_loses_its_rows() -> None:
    class Loses(mh.CrossCache):
        def reorder(self, index: Tensor) -> None:
            super().reorder(index.sort().values)

    with pytest.raises(LawBroken, match="rows_of_a_context_may_be_reordered"):
        check_cache(Loses)


def test_every_cache_has_a_name() -> None:
    assert all(getattr(mh, kind.__name__) is kind for kind in CACHES.values())
    assert all(kind.__name__.lower() == f"{name}cache" for name, kind in CACHES.items())
