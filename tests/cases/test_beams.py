"""When beams are chosen anew, every cache follows: the right row, keys and values, all layers."""

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import near
from torch import Tensor

import manyheads as mh
from manyheads.errors import CacheError

BEAMS = 2
PARENTS = torch.tensor([[1, 0], [0, 0]])
"""For each sample, the beam that each of its beams continues."""
ROWS = (PARENTS + BEAMS * torch.arange(2)[:, None]).flatten()


def tags(length: int) -> Tensor:
    """(4, 1, length, 1): 20 * row + 10 * position."""
    return (20.0 * torch.arange(4)[:, None] + 10.0 * torch.arange(length))[:, None, :, None]


def grown(split: list[int]) -> mh.GrowingCache:
    cache, held = mh.GrowingCache(), tags(sum(split))
    for k in held.split(split, dim=2):
        cache.append(k, -k)
    return cache


@pytest.mark.parametrize("split", [[2], [1, 1]], ids=str)
@pytest.mark.parametrize("width", [1, 3])
def test_keys_and_values_follow_their_beam(width: int, split: list[int]) -> None:
    """BEAM-01: two samples of two beams."""
    assert ROWS.tolist() == [1, 0, 2, 2]
    cache = grown(split)
    cache.reorder(ROWS)
    held = cache.append(torch.full((4, 1, width, 1), 7.0), torch.full((4, 1, width, 1), -7.0))
    expected = [[20, 30], [0, 10], [40, 50], [40, 50]]
    assert held.k[:, 0, :2, 0].tolist() == expected
    assert held.v[:, 0, :2, 0].neg().tolist() == expected
    assert held.k[:, 0, 2:].eq(7).all()


def test_a_beam_that_is_continued_twice_is_not_shared() -> None:
    cache = grown([1, 1])
    cache.reorder(ROWS)
    step = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1, 1)
    held = cache.append(step, step)
    assert held.k[2:, 0, :, 0].tolist() == [[40, 50, 3], [40, 50, 4]]


def test_what_was_said_of_the_tokens_follows_them() -> None:
    cache, positions = mh.GrowingCache(), torch.tensor([[-1, 0], [0, 1], [-1, 0], [5, 6]])
    x = torch.zeros(4, 2, 4, dtype=torch.float64)
    layer = mh.MultiHeadAttention(4, 1, dtype=torch.float64)
    layer(x, mask=mh.Causal(), positions=positions, cache=cache)
    cache.reorder(torch.tensor([3, 3, 0, 1]))
    assert cache.positions.tolist() == [[5, 6], [5, 6], [-1, 0], [0, 1]]
    layer(x[:, :1], mask=mh.Causal(), cache=cache)
    assert cache.positions[:, -1].tolist() == [7, 7, 1, 2]


def test_the_cache_of_a_context_is_the_same_for_beams_of_a_sample() -> None:
    context = tags(3)[[0, 0, 2, 2]]
    cache = mh.CrossCache()
    cache.append(context, -context)
    cache.reorder(ROWS)
    assert torch.equal(cache.read().k, context)
    assert torch.equal(cache.read().v, -context)
    cache.reorder(torch.tensor([3, 2, 0, 1]))
    assert torch.equal(cache.read().k, context[[3, 2, 0, 1]])
    assert torch.equal(cache.read().v, -context[[3, 2, 0, 1]])


def test_a_smaller_batch_keeps_the_rows_that_are_named() -> None:
    cache = grown([2])
    cache.reorder(torch.tensor([3, 0]))
    k = torch.zeros(2, 1, 1, 1)
    assert cache.append(k, k).k[:, 0, :2, 0].tolist() == [[60, 70], [0, 10]]


@pytest.mark.parametrize(
    "index", [torch.tensor([0, 1, 2, 4]), torch.tensor([-1, 0, 1, 2]), PARENTS, ROWS.double()]
)
def test_an_index_that_names_no_row_is_refused_and_nothing_moves(index: Tensor) -> None:
    cache = grown([2])
    with pytest.raises(CacheError, match=r"sample \* beams \+ beam"):
        cache.reorder(index)
    k = torch.zeros(4, 1, 1, 1)
    assert torch.equal(cache.append(k, k).k[:, :, :2], tags(2))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_every_layer_of_a_model_goes_on_from_the_beams_that_were_chosen(positions: str) -> None:
    config = mh.TransformerConfig(
        11, 11, d_model=8, num_heads=2, d_hidden=8, num_encoder_layers=1, num_decoder_layers=2,
        positions=positions,
    )  # fmt: skip
    model = mh.Transformer(config, dtype=torch.float64).eval()
    source = torch.tensor([[3, 4, 5], [3, 4, 5], [6, 7, 0], [6, 7, 0]])
    memory, caches = model.encode(source), model.new_caches()
    text = torch.tensor([[1, 3, 4], [1, 5, 6], [1, 7, 8], [1, 9, 10]])
    model.decode(text, memory, caches=caches)
    for parents in (ROWS, torch.tensor([0, 0, 3, 2])):
        for cache in caches:
            cache.reorder(parents)
        step = torch.tensor([[3], [4], [5], [6]])
        text = torch.cat((text[parents], step), dim=1)
        logits = model.decode(step, memory, caches=caches)
        near(logits[:, -1], model.decode(text, memory)[:, -1].numpy())


def test_beams_of_det_numbers_attend_as_their_own_history() -> None:
    k, v = (torch.from_numpy(det((4, 2, 5, 4), number)) for number in (35, 36))
    q = torch.from_numpy(det((4, 2, 1, 4), 37))
    cache = mh.GrowingCache()
    cache.append(k[:, :, :3], v[:, :, :3])
    cache.reorder(ROWS)
    held = cache.append(k[:, :, 3:], v[:, :, 3:])
    history = [torch.cat((x[ROWS][:, :, :3], x[:, :, 3:]), dim=2) for x in (k, v)]
    near(
        mh.attention(q, held.k, held.v, mh.Causal()),
        mh.attention(q, *history, mh.Causal()).numpy(),
    )
