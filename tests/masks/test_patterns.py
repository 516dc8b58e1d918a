"""Sparse patterns, held to their definitions pair by pair, and their bounds to every block."""

import itertools

import pytest
import torch

import manyheads as mh
from manyheads.errors import OptionError

N = 13


def is_power_of_two(n: int) -> bool:
    return n in {1, 2, 4, 8, 16}


DEFINITIONS = {
    mh.Dilated(3, step=2): lambda i, j: abs(i - j) in {0, 2, 4},
    mh.Dilated(2, step=1): lambda i, j: abs(i - j) in {0, 1},
    mh.Strided(4): lambda i, j: abs(i - j) < 4 or abs(i - j) % 4 == 0,
    mh.Fixed(4): lambda i, j: i // 4 == j // 4 or j % 4 == 3,
    mh.Fixed(4, summary=2): lambda i, j: i // 4 == j // 4 or j % 4 in {2, 3},
    mh.Dyadic(): lambda i, j: i == j or is_power_of_two(abs(i - j)),
    mh.Dyadic("halves"): lambda i, j: j in {i // 2, i, 2 * i},
    mh.Neighbourhood(width=4, radius=1): lambda i, j: (
        abs(i // 4 - j // 4) <= 1 and abs(i % 4 - j % 4) <= 1
    ),
    mh.Tiles(width=4, tile=2): lambda i, j: (i // 8, i % 4 // 2) == (j // 8, j % 4 // 2),
}


@pytest.mark.parametrize("mask", DEFINITIONS, ids=repr)
def test_a_pattern_is_what_its_definition_says(mask):
    sees = DEFINITIONS[mask]
    by_hand = [[sees(i, j) for j in range(N)] for i in range(N)]
    assert mask.dense(N)[0, 0].tolist() == by_hand


PATTERNS = [*DEFINITIONS, mh.RandomBlocks(2, block=3, length=N), mh.Tiles(4, 3, shift=1)]


@pytest.mark.parametrize("mask", PATTERNS, ids=repr)
@pytest.mark.parametrize("head", [None, 0, 1])
def test_bounds_are_sound_for_every_block(mask, head):
    dense = mask.dense(N, num_heads=2)[0]
    spans = [(lo, hi) for lo, hi in itertools.combinations_with_replacement(range(N), 2)]
    for (q_lo, q_hi), (kv_lo, kv_hi) in itertools.product(spans, spans[::3]):
        block = dense[:, q_lo : q_hi + 1, kv_lo : kv_hi + 1]
        block = block if head is None else block[head]
        some, every = mask.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        assert some or not block.any()
        assert block.all() or not every


def test_shifted_tiles_are_swins_windows():
    # Swin's own way: roll, cut into windows, and mask what does not belong together.
    height, width, tile, shift = 8, 12, 4, 2
    regions = torch.zeros(height, width, dtype=torch.long)
    edges = (slice(0, -tile), slice(-tile, -shift), slice(-shift, None))
    for number, (rows, columns) in enumerate(itertools.product(edges, edges)):
        regions[rows, columns] = number
    rows = torch.arange(height)[:, None].expand(height, width)
    columns = torch.arange(width).expand(height, width)
    window = (rows // tile) * 100 + columns // tile
    name = torch.stack((regions, window)).roll((shift, shift), dims=(1, 2)).flatten(1)
    theirs = (name[:, :, None] == name[:, None, :]).all(dim=0)
    assert torch.equal(mh.Tiles(width, tile, shift=shift).dense(height * width)[0, 0], theirs)


def test_random_blocks_are_as_many_as_asked_and_differ_between_heads_and_seeds():
    mask = mh.RandomBlocks(3, block=4, length=64)
    dense = mask.dense(64, num_heads=2)
    assert torch.equal(dense.sum(-1), torch.full((1, 2, 64), 12))
    assert not torch.equal(dense[:, 0], dense[:, 1])
    assert not torch.equal(
        dense, mh.RandomBlocks(3, block=4, length=64, seed=1).dense(64, num_heads=2)
    )


def test_random_blocks_draw_nothing_and_agree_between_chunks():
    before = torch.get_rng_state()
    mask = mh.RandomBlocks(2, block=4, length=32)
    whole = mask.dense(32)
    chunk = mask.dense(5, 32)
    assert torch.equal(chunk, whole[:, :, 27:])
    assert torch.equal(torch.get_rng_state(), before)


def test_random_blocks_spread_over_all_keys_as_chance_would():
    seen = mh.RandomBlocks(1, block=1, length=4096).dense(4096, num_heads=2)[0]
    times = seen.sum(1).float()
    # Each key is drawn once on average, with the variance of a Poisson distribution: 1.
    assert times.var(dim=1).sub(1).abs().max() < 0.1
    assert (seen[0] & seen[1]).sum() < 6  # heads agree by chance: once on average


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mh.Dilated(0, 2), "size must be an int of at least 1; got size=0"),
        (lambda: mh.Strided(-1), "stride must be an int of at least 1; got stride=-1"),
        (lambda: mh.Fixed(2, summary=0), "summary must be an int of at least 1; got summary=0"),
        (lambda: mh.Fixed(2, summary=3), "summary must be at most stride=2; got summary=3"),
        (lambda: mh.RandomBlocks(1, block=0, length=8), "block must be an int of at least 1"),
        (lambda: mh.RandomBlocks(1, block=-4, length=8), "block must be .*; got block=-4"),
        (lambda: mh.RandomBlocks(0, block=4, length=8), "count must be an int of at least 1"),
        (
            lambda: mh.RandomBlocks(1, block=9, length=8),
            "block must be at most length=8; got block=9",
        ),
        (
            lambda: mh.RandomBlocks(1, 4, 8, seed=-1),
            "seed must be an int of at least 0; got seed=-1",
        ),
        (lambda: mh.Neighbourhood(0, 1), "width must be an int of at least 1; got width=0"),
        (lambda: mh.Tiles(4, 2, shift=-1), "shift must be an int of at least 0; got shift=-1"),
        (lambda: mh.Dyadic("thirds"), "kind must be 'powers' or 'halves'; got kind='thirds'"),
        (lambda: mh.RandomBlocks(5, block=4, length=16), "count must be at most the 4 blocks"),
        (lambda: mh.Neighbourhood(4, -1), "radius must be an int of at least 0; got radius=-1"),
        (lambda: mh.Tiles(4, 0), "tile must be an int of at least 1; got tile=0"),
    ],
)
def test_a_pattern_out_of_range_says_what_is_wrong(make, message):
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        make()


def test_a_seed_of_64_bits_will_do() -> None:
    seed = torch.iinfo(torch.int64).max
    masks = [mh.RandomBlocks(2, block=2, length=32, seed=s).dense(32) for s in (seed, seed - 1)]
    assert not torch.equal(*masks)
