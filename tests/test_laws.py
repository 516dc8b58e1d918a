"""Every member of the house keeps the laws of its family."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.cache import CACHES, BlockPool, Cache
from manyheads.functional import BACKENDS
from manyheads.laws import Convention, check_attention, check_backend, check_cache, check_mask
from manyheads.masks import MASKS, Mask

KEEP = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1, 1, 1, 1]]).bool()
IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2], [5, 5, 5, 5, 0, 0, -1, -1, -1]])


def even(head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q - kv + head) % 2 == 0


# A new mask adds its line here, for 7 queries, 9 keys, 2 rows and 2 heads.
EXAMPLES: dict[str, list[Mask]] = {
    "Causal": [mh.Causal()],
    "Window": [mh.Window(1), mh.Window(3), mh.Window(before=2), mh.Window(before=4, after=0)],
    "Dilated": [mh.Dilated(3, step=2)],
    "Strided": [mh.Strided(4)],
    "Fixed": [mh.Fixed(4), mh.Fixed(4, summary=2)],
    "Dyadic": [mh.Dyadic(), mh.Dyadic("halves")],
    "RandomBlocks": [mh.RandomBlocks(2, block=3, length=48)],
    "Neighbourhood": [mh.Neighbourhood(width=4, radius=1)],
    "Tiles": [mh.Tiles(width=4, tile=2), mh.Tiles(4, 3, shift=1)],
    "Padding": [mh.Padding(KEEP), mh.Padding(lengths=torch.tensor([0, 9]))],
    "Documents": [mh.Documents(IDS, IDS[:, :7])],
    "Prefix": [mh.Prefix(0), mh.Prefix(3), mh.Prefix(torch.tensor([2, 11]))],
    "Global": [mh.Global(()), mh.Global((1, 4)), mh.Global(KEEP, KEEP[:, 2:])],
    "PerHead": [mh.PerHead((mh.Causal() & mh.Padding(KEEP), mh.Window(2)))],
    "Rule": [mh.Rule(even, "even"), mh.Rule(lambda head, q, kv: kv < 3, "the first three")],
    "Dense": [
        mh.Dense(torch.arange(63).view(7, 9) % 4 > 1),
        mh.Dense(KEEP[:, None, 2:, None] & KEEP[:, None, None]),
    ],
}


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_keeps_the_laws(name: str) -> None:
    for mask in EXAMPLES[name]:
        check_mask(mask)


@pytest.mark.parametrize(
    "mask",
    [
        mh.Causal() & (mh.Window(2) | mh.Global(0)) & mh.Padding(KEEP),
        ~(mh.Causal() & mh.Padding(KEEP)),
        ~(mh.Window(2) & mh.Documents(IDS, IDS[:, 2:])),
    ],
    ids=repr,
)
def test_expressions_of_masks_keep_the_laws(mask: Mask) -> None:
    check_mask(mask)


@pytest.mark.long
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_keeps_the_laws_on_many_positions(name: str) -> None:
    for mask in EXAMPLES[name]:
        check_mask(mask, thorough=True, seed=1)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_keeps_the_laws(name: str) -> None:
    check_backend(name)


@pytest.mark.long
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_keeps_the_laws_at_more_lengths(name: str) -> None:
    check_backend(name, thorough=True, seed=1)


# A new cache adds its line here, and how far the outputs of one that rounds may be off.
EXACT = 1e-10
CACHE_EXAMPLES: dict[str, list[tuple[Callable[[], Cache], float]]] = {
    "growing": [(mh.GrowingCache, EXACT)],
    "fixed": [(lambda: mh.FixedCache(48), EXACT)],
    "ring": [
        (lambda: mh.RingCache(4), EXACT),
        (lambda: mh.RingCache(1, undo=0), EXACT),
        (lambda: mh.RingCache(3, keep_first=2, undo=4), EXACT),
    ],
    "quantized": [
        (mh.QuantizedCache, EXACT),  # these texts are shorter than what it keeps exact
        (lambda: mh.QuantizedCache(8, recent=2, group=4), 0.04),
        (lambda: mh.QuantizedCache(4, recent=3, group=2), 0.5),
    ],
    "paged": [
        (mh.PagedCache, EXACT),
        (lambda: mh.PagedCache(BlockPool(1)), EXACT),
        (lambda: mh.PagedCache(BlockPool(3, blocks=60)), EXACT),
    ],
    "cross": [(mh.CrossCache, EXACT)],
}


@pytest.mark.parametrize("name", CACHES)
def test_every_cache_keeps_the_laws(name: str) -> None:
    for factory, tolerance in CACHE_EXAMPLES[name]:
        check_cache(factory, tolerance=tolerance)


@pytest.mark.long
@pytest.mark.parametrize("name", CACHES)
def test_every_cache_keeps_the_laws_of_many_histories(name: str) -> None:
    for factory, tolerance in CACHE_EXAMPLES[name]:
        check_cache(factory, tolerance=tolerance, thorough=True, seed=1)


def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return mh.attention(q, k, v)
    # What every query is kept from is padding; `attention` is told so by name.
    padding = mh.Padding(mask.any(dim=(1, 2)))
    return mh.attention(q, k, v, mh.Dense(mask) & padding)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_our_own_attention_keeps_the_laws_of_attention(dtype: torch.dtype) -> None:
    check_attention(ours, Convention(dtype=dtype))
