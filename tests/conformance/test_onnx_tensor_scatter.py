"""Every case of the ONNX operator TensorScatter, through caches.

ONNX writes new keys into slots of an outside buffer, from an index of each row. Our caches know
tokens, not slots: what is in a slot is the token that stands there, in a circular buffer the last
one whose position falls into it.
"""

from collections.abc import Callable

import pytest
import torch
from tests.conformance.onnx_cases import Case, cases, named
from torch import Tensor

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.masks import Tokens

CASES = cases("TensorScatter")
LINEAR = [case for case in CASES if case.attributes.get("mode", b"linear") == b"linear"]
CIRCULAR = [case for case in CASES if case.attributes.get("mode") == b"circular"]
KINDS: dict[str, Callable[[], Cache]] = {
    "fixed": lambda: mh.FixedCache(8),
    "growing": mh.GrowingCache,
    "paged": lambda: mh.PagedCache(BlockPool(3)),
    "quantized, recent": mh.QuantizedCache,
}


def heads(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x[:, None]


def append(cache: Cache, k: Tensor, positions: Tensor) -> None:
    batch, length = positions.shape
    cache.append(k, -k, Tokens.given("positions", positions, batch, length, k.device))


def slots(cache: Cache, past: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache, each in the slot that its position falls into."""
    held, room = cache.read(), past.shape[2]
    positions = cache.positions.expand(len(past), -1)
    keys, values = past.clone(), -past
    for row, places in enumerate(positions):
        there = places >= 0
        keys[row][:, places[there] % room] = held.k[row][:, there]
        values[row][:, places[there] % room] = held.v[row][:, there]
    return keys, values


def test_onnx_has_three_cases_of_which_one_is_circular() -> None:
    assert (len(LINEAR), len(CIRCULAR)) == (2, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", LINEAR, ids=named)
def test_new_keys_stand_where_each_row_ended(case: Case, kind: str) -> None:
    past, update = heads(case.inputs["past_cache"]), heads(case.inputs["update"])
    ends = case.inputs["write_indices"][:, None]
    cache, place = KINDS[kind](), torch.arange(past.shape[2])
    # What ONNX leaves behind a row's end is no token.
    append(cache, past, torch.where(place < ends, place, -1))
    follows = cache.follow(update.shape[2], update.device)
    assert torch.equal(follows.positions(), ends + torch.arange(update.shape[2]))
    append(cache, update, follows.positions())
    keys, values = slots(cache, past)
    case.check("present_cache", keys.view_as(case.outputs["present_cache"]))
    case.check("present_cache", -values.view_as(case.outputs["present_cache"]))


@pytest.mark.parametrize("case", CIRCULAR, ids=named)
def test_a_ring_drops_what_a_circular_buffer_overwrites(case: Case) -> None:
    past, update = case.inputs["past_cache"], case.inputs["update"]
    room, ends = past.shape[2], case.inputs["write_indices"][:, None]
    # The buffer went round once: the slots from the index on are those of the round before.
    positions = ends + torch.arange(room)
    cache = mh.RingCache(room)
    append(cache, past.gather(2, _columns(positions % room, past)), positions)
    append(cache, update, cache.follow(update.shape[2], update.device).positions())
    assert cache.length == room
    keys, values = slots(cache, torch.full_like(past, torch.nan))
    case.check("present_cache", keys)
    case.check("present_cache", -values)


def _columns(index: Tensor, like: Tensor) -> Tensor:
    return index[:, None, :, None].expand(like.shape)
