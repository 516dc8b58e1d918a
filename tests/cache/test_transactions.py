"""What may be done to every cache: rows leave and join a batch, files hold it, nothing aliases."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.errors import CacheError
from manyheads.masks import Tokens

F64 = torch.float64
KINDS: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(16),
    "ring": lambda: mh.RingCache(20),
    "quantized": mh.QuantizedCache,
    "paged": lambda: mh.PagedCache(BlockPool(4)),
}


def layer(**options: object) -> mh.MultiHeadAttention:
    torch.manual_seed(0)
    made = mh.MultiHeadAttention(8, 4, num_kv_heads=2, rotary=mh.Rotary(2), dtype=F64, **options)
    return made.requires_grad_(False)


LAYER = layer()
X = torch.randn(3, 12, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
every_kind = pytest.mark.parametrize("kind", KINDS)


def filled(kind: str, x: Tensor = X[:, :6], **options: object) -> Cache:
    cache = KINDS[kind]()
    LAYER(x, mask=mh.Causal(), cache=cache, **options)
    return cache


def step(cache: Cache, x: Tensor) -> Tensor:
    return LAYER(x, mask=mh.Causal(), cache=cache)


def alone(x: Tensor, last: int) -> Tensor:
    return LAYER(x, mask=mh.Causal())[:, -last:]


@every_kind
def test_rows_leave_a_batch_and_go_on_by_themselves(kind: str) -> None:
    cache = filled(kind)
    part = cache.split(torch.tensor([2, 0]))
    assert_close(step(part, X[[2, 0], 6:9]), alone(X[[2, 0], :9], 3))
    cache.reorder(torch.tensor([1]))
    assert_close(step(cache, X[1:2, 6:8]), alone(X[1:2, :8], 2))
    assert_close(step(part, X[[2, 0], 9:]), alone(X[[2, 0]], 3))
    assert (cache.length, part.length) == (8, 12)


@every_kind
@pytest.mark.parametrize("lengths", [(6, 2), (2, 6), (4, 4)])
def test_a_request_joins_a_batch_that_is_under_way(kind: str, lengths: tuple[int, int]) -> None:
    first, second = lengths
    cache, other = filled(kind, X[:2, :first]), filled(kind, X[2:, :second])
    cache.merge(other)
    # Each row goes on from its own end.
    rows = [(0, first), (1, first), (2, second)]
    for width in (1, 2, 1):
        x = torch.stack([X[row, at : at + width] for row, at in rows])
        out = step(cache, x)
        for i, (row, at) in enumerate(rows):
            assert_close(out[i : i + 1], alone(X[row : row + 1, : at + width], width))
        rows = [(row, at + width) for row, at in rows]
    cache.reorder(torch.tensor([2, 0]))
    cache.rollback(2)
    x = torch.stack([X[2, second + 2 :][:1], X[0, first + 2 :][:1]])
    assert_close(step(cache, x)[:1], alone(X[2:, : second + 3], 1))
    assert_close(step(other, X[2:, second : second + 1]), alone(X[2:, : second + 1], 1))


@every_kind
def test_an_empty_cache_takes_the_rows_of_another_and_gives_none(kind: str) -> None:
    cache, other = KINDS[kind](), filled(kind)
    cache.merge(other)
    other.merge(KINDS[kind]())
    for one in (cache, other):
        assert_close(step(one, X[:, 6:]), alone(X, 6))


@every_kind
def test_a_merge_that_is_refused_changes_nothing(kind: str) -> None:
    cache = filled(kind)
    documents = KINDS[kind]()
    ids = torch.zeros(3, 6, dtype=torch.long)
    LAYER(X[:, :6], mask=mh.Causal() & mh.Documents(ids), cache=documents)
    wide, narrow = KINDS[kind](), KINDS[kind]()
    wide.append(torch.zeros(1, 3, 2, 2, dtype=F64), torch.zeros(1, 3, 2, 2, dtype=F64))
    narrow.append(torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 2, 2))
    for other, message in (
        (cache, "must be merged with another of its kind; got the same one"),
        (mh.CrossCache(), "must be merged with another of its kind; got CrossCache"),
        (documents, "must all know the document of their tokens or none; got 6 tokens without"),
        (wide, "k must have the cache's batch, heads and width"),
        (narrow, "k must have the cache's dtype and device"),
    ):
        with pytest.raises(CacheError, match=message):
            cache.merge(other)
    assert_close(step(cache, X[:, 6:]), alone(X, 6))


@every_kind
def test_rows_with_and_without_padding_are_merged(kind: str) -> None:
    """What a bool mask did not say is not so."""
    cache, other = filled(kind, X[:1, :4]), KINDS[kind]()
    keep = torch.tensor([[True, False, True, True], [False, False, True, True]])
    mask = mh.Causal() & mh.Padding(keep)
    x = X[1:, :4].masked_fill(~keep[..., None], torch.nan)
    LAYER(x, mask=mask, positions=torch.arange(4), cache=other)
    cache.merge(other)
    out = step(cache, X[:, 4:6])
    whole = torch.cat((keep, torch.ones(2, 2, dtype=torch.bool)), dim=1)
    assert_close(out[:1], alone(X[:1, :6], 2))
    assert_close(out[1:], LAYER(X[1:, :6], mask=mh.Causal() & mh.Padding(whole))[:, -2:])


@every_kind
def test_a_cache_is_saved_and_goes_on_elsewhere(kind: str, tmp_path: Path) -> None:
    cache, path = filled(kind), tmp_path / "new" / "cache.safetensors"
    cache.reorder(torch.tensor([0, 2, 1]))
    cache.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["cache.safetensors"]
    loaded = type(cache).load(path)
    assert loaded.positions.tolist() == cache.positions.tolist()
    for one in (loaded, cache):
        assert_close(step(one, X[[0, 2, 1], 6:]), alone(X[[0, 2, 1]], 6))
    # Left padding and marks too.
    ids = torch.tensor([[0, 0, 1, 1]])
    padded, places = KINDS[kind](), torch.arange(4) - torch.tensor([[0], [2], [1]])
    mask = mh.Causal() & mh.Documents(ids.expand(3, 4))
    LAYER(X[:, :4], mask=mask, positions=places, cache=padded)
    padded.save(path)
    next_ids = mh.Causal() & mh.Documents(torch.ones(3, 1, dtype=torch.long))
    outs = [LAYER(X[:, 4:5], mask=next_ids, cache=one) for one in (padded, type(cache).load(path))]
    assert torch.equal(*outs)


@every_kind
def test_what_is_no_saved_cache_is_refused(kind: str, tmp_path: Path) -> None:
    cache, path = filled(kind), tmp_path / "cache"
    message = "path must be a file that a cache was saved in; got path="
    with pytest.raises(CacheError, match=message):
        type(cache).load(path)
    path.write_bytes(b"something else")
    with pytest.raises(CacheError, match=message):
        type(cache).load(path)
    cache.save(path)
    with pytest.raises(CacheError, match=r"path must hold a CrossCache; got path=.* with a"):
        mh.CrossCache.load(path)
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(CacheError, match=message):
        type(cache).load(path)


LATENT = mh.LatentAttention(8, 4, 6, head_dim=2, dtype=F64).requires_grad_(False)


@every_kind
@pytest.mark.parametrize("reads", [LAYER, LATENT], ids=["heads", "latents"])
def test_a_call_that_fails_at_its_very_end_leaves_the_cache(kind: str, reads: nn.Module) -> None:
    cache = KINDS[kind]()
    reads(X[:, :6], mask=mh.Causal(), cache=cache)
    before = cache.read().k.clone()

    def fails(module: nn.Module, given: object) -> None:
        raise KeyboardInterrupt

    hook = reads.out_proj.register_forward_pre_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        reads(X[:, 6:8], mask=mh.Causal(), cache=cache)
    hook.remove()
    assert cache.length == 6 and torch.equal(cache.read().k, before)


@every_kind
def test_a_file_in_which_something_is_missing_is_refused(kind: str, tmp_path: Path) -> None:
    cache, path = filled(kind), tmp_path / "cache"
    cache.save(path)
    with safe_open(path, framework="pt") as file:
        note = json.loads(file.metadata()["manyheads.cache"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    others = list(tensors)[1:]
    for held, state in (
        ({name: tensors[name] for name in others}, note),
        (tensors, {**note, "state": ["Foreign", {}]}),
        (tensors, {"kind": note["kind"]}),
        (tensors, []),
    ):
        save_file(held, path, metadata={"manyheads.cache": json.dumps(state)})
        with pytest.raises(CacheError, match=r"path must .*got path=.*\. Save"):
            type(cache).load(path)


@every_kind
def test_what_is_committed_goes_on_as_before(kind: str) -> None:
    cache = filled(kind)
    step(cache, X[:, 6:7])
    before = cache.memory_bytes()
    cache.commit()
    assert cache.memory_bytes() <= before
    assert_close(step(cache, X[:, 7:]), alone(X, 5))


@every_kind
def test_an_empty_cache_tells_nothing_and_has_nothing_to_read(kind: str) -> None:
    cache = KINDS[kind]()
    assert cache.length == 0 and cache.tokens is None
    cache.commit()
    cache.rollback(0)
    for action in (cache.read, lambda: cache.reorder(torch.tensor([0]))):
        with pytest.raises(CacheError, match="a cache must hold tokens before"):
            action()


@every_kind
def test_a_shallow_copy_goes_its_own_way(kind: str) -> None:
    cache = filled(kind)
    with torch.no_grad():
        step(cache, X[:, 6:7])
        other = copy.copy(cache)
        other_out = [step(other, -X[:, i : i + 1]) for i in range(7, 10)]
        out = [step(cache, X[:, i : i + 1]) for i in range(7, 10)]
        out += [step(cache, X[:, 10:])]
        other_out += [step(other, -X[:, 10:])]
    assert_close(torch.cat(out, 1), alone(X, 5))
    assert_close(torch.cat(other_out, 1), alone(torch.cat((X[:, :7], -X[:, 7:]), 1), 5))


@every_kind
def test_beams_that_go_on_from_one_row_do_not_share_what_follows(kind: str) -> None:
    cache = filled(kind)
    cache.reorder(torch.tensor([1, 1, 0, 1]))
    x = torch.randn(4, 3, 8, dtype=F64)
    past = X[[1, 1, 0, 1], :6]
    outs = [step(cache, part) for part in x.split(1, 1)]
    assert_close(torch.cat(outs, 1), alone(torch.cat((past, x), 1), 3))


@every_kind
def test_a_layer_that_fails_leaves_the_cache_as_it_was(kind: str) -> None:
    cache = filled(kind)
    bad = mh.Rule(lambda head, q, kv: q, "no bool")
    for _ in range(2):
        with pytest.raises(mh.errors.MaskError):
            LAYER(X[:, 6:8] * torch.nan, mask=bad, cache=cache)
    assert cache.length == 6
    assert_close(step(cache, X[:, 6:]), alone(X, 6))


def test_a_context_too_may_be_split_merged_and_saved(tmp_path: Path) -> None:
    cross = mh.MultiHeadAttention(8, 2, dtype=F64).requires_grad_(False)
    short, long = torch.randn(1, 3, 8, dtype=F64), torch.randn(2, 5, 8, dtype=F64)
    x = torch.randn(3, 1, 8, dtype=F64)
    cache, other = mh.CrossCache(), mh.CrossCache()
    cross(x[:1], short, cache=cache)
    cross(x[1:], long, cache=other)
    cache.merge(other)
    cache.save(tmp_path / "context")
    for one in (cache, mh.CrossCache.load(tmp_path / "context")):
        out = cross(x, cache=one)
        assert_close(out[:1], cross(x[:1], short))
        assert_close(out[1:], cross(x[1:], long))
    assert_close(cross(x[2:], cache=cache.split(torch.tensor([2]))), cross(x[2:], long[1:]))


def test_a_mark_that_only_one_of_two_knows_is_not_so() -> None:
    tags = torch.tensor([[True, False]])
    caches = []
    for marks in ({}, {"tag": tags}):
        cache = mh.GrowingCache()
        cache.append(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), Tokens(2, 0, marks=marks))
        caches.append(cache)
    caches[0].merge(caches[1])
    assert caches[0].read().tokens.marks["tag"].tolist() == [[False, False], [True, False]]
