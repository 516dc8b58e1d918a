"""The bugs of other caches, held against every kind of ours."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.cases.det import det
from torch import Tensor

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.masks import Tokens

KINDS: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(12),
    "ring": lambda: mh.RingCache(12),
    "quantized": mh.QuantizedCache,
    "paged": lambda: mh.PagedCache(BlockPool(2)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def attend(cache: Cache, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens | None = None) -> Tensor:
    tokens = cache.follow(q.shape[2], q.device) if tokens is None else tokens
    held = cache.append(k, v, tokens)
    return mh.attention(
        q, held.k, held.v, mh.Causal(), q_pos=tokens.position, kv_pos=held.tokens.position
    )


@every_kind
@pytest.mark.parametrize("split", [[7], [3, 1, 2, 1], [2, 5], [1] * 7], ids=str)
def test_every_way_of_cutting_is_one_pass(kind: str, split: list[int]) -> None:
    """CAUS-02: seven tokens of width 4; the first row is v[0]."""
    q, k, v = (torch.from_numpy(det((7, 4), number))[None, None] for number in (23, 24, 25))
    cache, parts = KINDS[kind](), zip(*(x.split(split, 2) for x in (q, k, v)), strict=True)
    out = torch.cat([attend(cache, *part) for part in parts], dim=2)[0, 0]
    full = {
        0: [1, 1.625, 0.125, 0.375],
        1: [0.288559989, 0.700127986, 0.0894279995, 0.125995996],
        4: [-0.719245545, -1.37996944, -0.514755905, -0.160148414],
        6: [-0.1024801, -1.04118926, -0.619023133, 0.133493211],
    }
    known = torch.tensor(list(full.values()), dtype=torch.float64)
    torch.testing.assert_close(out[list(full)], known, atol=1e-8, rtol=0)
    assert torch.equal(out[0], v[0, 0, 0])


@every_kind
@pytest.mark.parametrize("split", [[2], [1, 1]], ids=str)
def test_keys_and_values_follow_their_beam(kind: str, split: list[int]) -> None:
    """BEAM-01: two samples of two beams, rows tagged 20 * row + 10 * position."""
    tags = (20.0 * torch.arange(4)[:, None] + 10.0 * torch.arange(2))[:, None, :, None]
    cache = KINDS[kind]()
    for k in tags.split(split, dim=2):
        cache.append(k, -k)
    cache.reorder(torch.tensor([1, 0, 2, 2]))
    step = torch.arange(4.0).view(4, 1, 1, 1)
    held = cache.append(step, step)
    right = [[20, 30, 0], [0, 10, 1], [40, 50, 2], [40, 50, 3]]
    assert held.k[:, 0, :, 0].tolist() == right
    assert held.v[:, 0, :2, 0].neg().tolist() == [row[:2] for row in right]


@every_kind
def test_a_left_padded_row_decodes_as_it_would_alone(kind: str) -> None:
    """PAD-01 (b): three prompt tokens after two of padding, then one step, by rotary."""
    k = torch.from_numpy(det((4, 4), 27))[None, None]
    q = torch.from_numpy(det((1, 4), 28))[None, None]
    rotary, cache = mh.Rotary(4), KINDS[kind]()
    places = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    prompt = torch.cat((torch.full((1, 1, 2, 4), torch.nan, dtype=k.dtype), k[:, :, :3]), 2)
    prompt = torch.cat((prompt, torch.ones_like(prompt)))
    tokens = Tokens.given("positions", places, 2, 5, None)
    cache.append(rotary(prompt, places.clamp(min=0)), prompt, tokens)
    after = cache.follow(1, q.device)
    assert after.positions().flatten().tolist() == [3, 5]
    last = k[:, :, 3:].expand(2, -1, -1, -1)
    held = cache.append(rotary(last, after.position), last, after)
    logits = (rotary(q.expand(2, -1, -1, -1), after.position) @ held.k.mT)[0, 0, 0, 2:]
    right = [2.14034809, -0.363035566, -2.1890386, -1.703125]

    np.testing.assert_allclose(logits.numpy() / 2, right, atol=1e-8)
    assert cache.positions.tolist() == [[-1, -1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


@every_kind
@torch.no_grad()
def test_greedy_text_in_fp32_is_that_without_a_cache(kind: str) -> None:
    torch.manual_seed(4)
    layer = mh.EncoderLayer(16, 4, 32, norm="pre", rotary=mh.Rotary(4)).eval()
    table = torch.randn(13, 16)
    text, cache = torch.tensor([[1, 5, 3], [2, 2, 8]]), KINDS[kind]()
    logits = layer(table[text], mask=mh.Causal(), cache=cache)[:, -1] @ table.T
    for _ in range(8):
        whole = layer(table[text], mask=mh.Causal())[:, -1] @ table.T
        torch.testing.assert_close(logits, whole, rtol=1e-5, atol=1e-5)
        text = torch.cat((text, whole.argmax(-1, keepdim=True)), dim=1)
        logits = layer(table[text[:, -1:]], mask=mh.Causal(), cache=cache)[:, -1] @ table.T
    assert text.shape == (2, 11)
