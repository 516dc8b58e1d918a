import pathlib

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh
from manyheads.cache.codes import decode, encode, pack, unpack
from manyheads.errors import CacheError, OptionError
from manyheads.masks import Tokens

LEVELS = {8: 255, 4: 15}
every_width = pytest.mark.parametrize("bits", [8, 4])


def off(x: Tensor, bits: int, axis: int, absent: Tensor | None = None) -> Tensor:
    codes = encode(x, bits, axis, absent)
    return (decode(codes, bits, x.shape[-1], torch.float64) - x.double()).abs()


def stated(x: Tensor, bits: int, axis: int) -> Tensor:
    x = x.double()
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    middle = (low / 2 + high / 2).abs()
    return 1.012 * ((high - low) / 2 + middle / 256) / LEVELS[bits] + 1e-6 * middle


@every_width
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    "shape", ["normal", "outlier channel", "outlier token", "constant", "far off", "huge", "tiny"]
)
def test_no_number_is_off_by_more_than_was_stated(shape: str, axis: int, bits: int) -> None:
    x = torch.randn(2, 2, 64, 15, dtype=torch.float64)
    if shape == "outlier channel":
        x[..., 3] *= 1e4
    elif shape == "outlier token":
        x[:, :, 7] = 1e5
    elif shape == "constant":
        x[..., 2], x[:, :, 5] = 3.7, -1e3
    elif shape == "far off":
        x = 1000 + x
    elif shape in ("huge", "tiny"):
        x = x * (1e37 if shape == "huge" else 1e-30)
    assert (off(x, bits, axis) <= stated(x, bits, axis)).all()


@every_width
def test_an_outlier_channel_of_keys_costs_the_others_nothing(bits: int) -> None:
    x = torch.randn(1, 1, 64, 8)
    before = off(x, bits, -2)
    x[..., 3] *= 1e6
    assert_close(off(x, bits, -2)[..., [0, 1, 2, 4, 5, 6, 7]], before[..., [0, 1, 2, 4, 5, 6, 7]])


@every_width
def test_what_is_constant_is_exact_where_bf16_can_say_it(bits: int) -> None:
    assert off(torch.full((1, 1, 64, 4), -1.5), bits, -2).max() == 0
    assert off(torch.zeros(1, 1, 64, 4), bits, -1).max() == 0


@every_width
def test_absent_tokens_widen_no_range(bits: int) -> None:
    x = 100 + torch.randn(1, 1, 8, 4)
    absent = (torch.arange(8) < 3)[None, None, :, None]
    spoilt = x.masked_fill(absent, torch.nan)
    assert_close(
        encode(spoilt, bits, -2, absent).step, encode(x[:, :, 3:], bits, -2).step, rtol=0, atol=0
    )
    nobody = encode(spoilt, bits, -2, torch.ones_like(absent))
    assert decode(nobody, bits, 4, torch.float32).abs().max() == 0


def test_two_codes_lie_in_a_byte() -> None:
    codes = torch.tensor([[1, 15, 0, 7, 9]], dtype=torch.uint8)
    packed = pack(codes, 4)
    assert packed.tolist() == [[1 + 15 * 16, 7 * 16, 9]]
    assert torch.equal(unpack(packed, 4, 5), codes)


@every_width
def test_recent_tokens_are_exact_and_the_others_as_near_as_it_says(bits: int) -> None:
    cache = mh.QuantizedCache(bits, recent=5, group=4)
    k, v = torch.randn(2, 2, 23, 6), 10 * torch.randn(2, 2, 23, 3)
    for start, stop in ((0, 7), (7, 8), (8, 23)):
        shown = cache.append(k[:, :, start:stop], v[:, :, start:stop])
        assert torch.equal(shown.k[:, :, start:], k[:, :, start:stop])
    held = cache.read()
    assert torch.equal(held.k[:, :, -5:], k[:, :, -5:])
    assert torch.equal(held.v[:, :, -5:], v[:, :, -5:])
    for found, right, error in zip((held.k, held.v), (k, v), cache.error, strict=True):
        worst = float((found - right).abs().max())
        assert 0 < worst <= error * (1 + 1e-5)
        assert error <= float(right.max() - right.min()) / LEVELS[bits] / 2 * 1.1


@every_width
def test_a_rollback_into_rounded_tokens_rounds_nothing_twice(bits: int) -> None:
    cache, k = mh.QuantizedCache(bits, recent=2, group=4), torch.randn(1, 2, 30, 6)
    cache.append(k, k)
    before = cache.read().k
    cache.rollback(13)  # into the middle of a group
    assert torch.equal(cache.read().k, before[:, :, :17])
    cache.append(k[:, :, 17:], k[:, :, 17:])
    assert torch.equal(cache.read().k[:, :, :17], before[:, :, :17])
    assert float((cache.read().k - k).abs().max()) <= cache.error[0] * (1 + 1e-5)


@every_width
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_memory_is_a_share_of_that_of_bf16(bits: int, dtype: torch.dtype) -> None:
    cache, k = mh.QuantizedCache(bits), torch.randn(1, 2, 4096, 64).to(dtype)
    cache.append(k, k)
    share = cache.memory_bytes() / (2 * k.numel() * 2)
    assert share <= {8: 0.55, 4: 0.32}[bits]


@every_width
@pytest.mark.parametrize("lengths", [(20, 3), (3, 20), (20, 14), (4, 5)])
def test_rows_that_are_merged_keep_what_was_rounded(bits: int, lengths: tuple[int, int]) -> None:
    caches, texts = [], [torch.randn(2, 2, n, 6) for n in lengths]
    for text in texts:
        caches.append(mh.QuantizedCache(bits, recent=3, group=4))
        for part in text.split(2, dim=2):
            caches[-1].append(part, part)
    before = [cache.read() for cache in caches]
    caches[0].merge(caches[1])
    held, most = caches[0].read(), max(lengths)
    error = caches[0].error[0] * (1 + 1e-5)
    for text, rows, old in zip(texts, (slice(2), slice(2, 4)), before, strict=True):
        length = text.shape[2]
        assert (
            held.tokens.positions()
            .expand(4, -1)[rows, most - length :]
            .eq(torch.arange(length))
            .all()
        )
        assert float((held.k[rows, :, most - length :] - text).abs().max()) <= error
        assert torch.equal(held.k[rows, :, -3:], text[:, :, -3:])
        rounded = (old.k != text).any(dim=(0, 1, 3))
        assert torch.equal(held.k[rows, :, most - length :][:, :, rounded], old.k[:, :, rounded])
    assert torch.equal(caches[1].read().k, before[1].k)
    caches[0].rollback(most - 1)
    assert caches[0].length == 1


def test_rounding_at_once_is_asked_for_by_commit() -> None:
    cache, k = mh.QuantizedCache(4, recent=2, group=8), torch.randn(1, 1, 9, 4)
    cache.append(k, k)
    assert cache.error == (0.0, 0.0)
    cache.commit()
    assert cache.error > (0.0, 0.0)
    assert torch.equal(cache.read().k[:, :, -2:], k[:, :, -2:])
    for _ in range(5):
        cache.append(k, k)
    assert float((cache.read().k - k.repeat(1, 1, 6, 1)).abs().max()) <= cache.error[0] * (1 + 1e-5)


def test_absent_tokens_are_given_back_as_zeros() -> None:
    cache, k = mh.QuantizedCache(8, recent=1, group=2), torch.randn(2, 1, 9, 4)
    absent = torch.arange(9) < torch.tensor([[3], [0]])
    k = k.masked_fill(absent[:, None, :, None], torch.nan)
    cache.append(k, k, Tokens(9, 0, absent))
    held = cache.read()
    assert held.k[0, :, :3].abs().max() == 0
    assert float((held.k - k)[:, :, 3:].abs().max()) <= cache.error[0] * (1 + 1e-5)


def test_what_is_refused_is_named() -> None:
    with pytest.raises(OptionError, match="bits must be 8 or 4; got bits=2"):
        mh.QuantizedCache(2)
    for options in ({"recent": -1}, {"group": 0}):
        with pytest.raises(OptionError, match="must be an int of at least"):
            mh.QuantizedCache(8, **options)
    cache, k = mh.QuantizedCache(8), torch.zeros(1, 1, 3, 2)
    with pytest.raises(CacheError, match="a QuantizedCache must be filled without gradients; got"):
        cache.append(k.clone().requires_grad_(), k)
    assert cache.length == 0
    cache.append(k, k)
    other = mh.QuantizedCache(4)
    other.append(k, k)
    with pytest.raises(CacheError, match="caches that are merged must round alike, bits=8 and gr"):
        cache.merge(other)


@every_width
def test_values_of_no_width_take_no_room(bits: int, tmp_path) -> None:
    """A cache of latents has none; see `LatentAttention`."""

    def filled(rows: int, length: int) -> mh.QuantizedCache:
        cache = mh.QuantizedCache(bits, recent=2, group=4)  # type: ignore[arg-type]
        for part in torch.randn(rows, 1, length, 6).split([5, length - 5], dim=2):
            cache.append(part, part[..., :0])
        return cache

    cache, wide = filled(2, 19), mh.QuantizedCache(bits, recent=2, group=4)  # type: ignore[arg-type]
    k = torch.randn(2, 1, 19, 6)
    wide.append(k, k)
    assert 0 < 2 * cache.memory_bytes() < 1.2 * wide.memory_bytes()
    before = cache.read()
    assert before.k.shape == (2, 1, 19, 6) and before.v.shape == (2, 1, 19, 0)
    cache.rollback(5)
    cache.reorder(torch.tensor([1, 0]))
    assert_close(cache.read().k, before.k[[1, 0], :, :14])
    cache.save(tmp_path / "cache.safetensors")
    assert_close(mh.QuantizedCache.load(tmp_path / "cache.safetensors").read().k, cache.read().k)
    cache.merge(filled(1, 11))
    assert cache.read().k.shape == (3, 1, 14, 6) and cache.read().v.shape == (3, 1, 14, 0)
    assert cache.error[1] == 0.0


def test_bits_that_numpy_counted_are_saved(tmp_path: pathlib.Path) -> None:
    cache = mh.QuantizedCache(np.int64(8), recent=np.int64(2))  # type: ignore[arg-type]
    cache.append(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8))
    cache.save(tmp_path / "cache")
    assert mh.QuantizedCache.load(tmp_path / "cache").bits == 8
