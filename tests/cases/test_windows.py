"""A window of W leaves W keys, the query's own included; off by one is another window."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near

import manyheads as mh


def band(length: int, before: int, after: int = 0) -> np.ndarray:
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    return (distance <= before) & (distance >= -after)


def case(allow: np.ndarray, shape: tuple[int, ...] = (1, 1, 6, 4)) -> Exact:
    """SWA-01: six tokens of width 4."""
    return Exact(*(det(shape, number) for number in (29, 30, 31, 97)), allow=allow)


@every_backend
@every_dtype
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 100])
def test_a_causal_window_of_w_leaves_w_keys(size: int, dtype: torch.dtype, backend: str) -> None:
    exact = case(band(6, size - 1))
    exact.agrees(dtype, backend, mh.Causal() & mh.Window(size))
    exact.agrees(dtype, backend, mh.Window(before=size - 1, after=0))


@every_backend
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_window_alone_reaches_as_far_ahead_as_back(size: int, backend: str) -> None:
    exact = case(band(7, size - 1, size - 1), (2, 2, 7, 4))
    exact.agrees(torch.float64, backend, mh.Window(size))


@every_backend
@pytest.mark.parametrize(("before", "after"), [(2, 1), (0, 3), (3, None), (None, 1)])
def test_a_lopsided_window_counts_neighbours_without_self(
    before: int | None, after: int | None, backend: str
) -> None:
    sides = (99 if before is None else before, 99 if after is None else after)
    exact = case(band(7, *sides), (1, 2, 7, 4))
    exact.agrees(torch.float64, backend, mh.Window(before=before, after=after))


def test_the_counts_are_those_worked_out_elsewhere() -> None:
    mask = mh.Causal() & mh.Window(3)
    assert mask.dense(6)[0, 0].sum(-1).tolist() == [1, 2, 3, 3, 3, 3]
    assert mask.describe(6).seen == 15
    # 18 is the signature of a window that is wider by one
    assert (mh.Causal() & mh.Window(4)).describe(6).seen == 18


@every_backend
def test_the_numbers_are_those_worked_out_elsewhere(backend: str) -> None:
    q, k, v = (torch.from_numpy(det((1, 1, 6, 4), number)) for number in (29, 30, 31))

    def attend(mask: mh.Mask) -> torch.Tensor:
        return mh.attention(q, k, v, mask, backend=backend)[0, 0]

    near(
        attend(mh.Causal() & mh.Window(3))[5],
        [-0.33761000487685, -0.93310008768409, 0.22140982950867, -0.74908025329857],
    )
    near(
        attend(mh.Causal() & mh.Window(3))[2],
        [-0.56986527539218, 0.6374264954922, -1.445570734766, 0.26613819891032],
    )
    near(
        attend(mh.Causal() & mh.Window(4))[5],
        [-0.3889082534601, -0.77038216469047, 0.116122741192, -0.64035117003837],
    )


@every_backend
def test_a_window_of_one_copies_and_a_window_of_all_is_causal(backend: str) -> None:
    q, k, v = (torch.from_numpy(det((1, 1, 6, 4), number)) for number in (29, 30, 31))
    near(mh.attention(q, k, v, mh.Window(1), backend=backend), v)
    for size in (6, 7, 1000):
        assert torch.equal(
            mh.attention(q, k, v, mh.Causal() & mh.Window(size), backend=backend),
            mh.attention(q, k, v, mh.Causal(), backend=backend),
        )


@every_backend
@pytest.mark.parametrize("kept", [1, 2, 4])
def test_a_window_goes_by_positions_where_old_keys_are_gone(kept: int, backend: str) -> None:
    """A neighbour of SWA-02: the last `kept` keys of six, as a rolling cache holds them."""
    q, k, v = (torch.from_numpy(det((1, 1, 6, 4), number)) for number in (29, 30, 31))
    mask = mh.Causal() & mh.Window(kept)
    full = mh.attention(q, k, v, mask)
    last = mh.attention(
        q[:, :, -1:], k[:, :, -kept:], v[:, :, -kept:], mask, q_pos=5, kv_pos=6 - kept,
        backend=backend,
    )  # fmt: skip
    near(last, full[:, :, -1:])


RIGHT_ROWS = {
    3: [1.19163387, 0.667648825],
    4: [-0.571858787, -1.13520735],
    6: [-0.616484049, -0.91974429],
    7: [-1.04177374, -0.280849631],
    8: [-0.0758187109, -1.16025601],
    9: [-0.775782502, -0.0603533122],
    11: [0.755130483, 0.54489431],
}


@every_backend
@pytest.mark.parametrize(
    "split", [[7, 3, 1, 1], [4, 1, 1, 6], [12], [1] * 12, [5, 5, 2], [3, 1, 8]], ids=str
)
def test_chunks_that_cross_a_rolling_cache_are_seen_whole(split: list[int], backend: str) -> None:
    """SWA-02: twelve tokens of width 2, a window of four."""
    q, k, v = (torch.from_numpy(det((1, 1, 12, 2), number)) for number in (32, 33, 34))
    cache, mask, outs, start = mh.RingCache(4), mh.Causal() & mh.Window(4), [], 0
    for length in split:
        stop = start + length
        shown = cache.append(k[:, :, start:stop], v[:, :, start:stop])
        assert shown.k.shape[2] <= 4 - 1 + length
        assert cache.positions.tolist() == list(range(max(stop - 4, 0), stop))
        outs.append(
            mh.attention(
                q[:, :, start:stop],
                shown.k,
                shown.v,
                mask,
                q_pos=start,
                kv_pos=shown.tokens.position,
                backend=backend,
            )
        )
        start = stop
    out = torch.cat(outs, dim=2)[0, 0]
    near(out, mh.attention(q, k, v, mask)[0, 0].numpy())
    known = torch.tensor(list(RIGHT_ROWS.values()), dtype=torch.float64)
    torch.testing.assert_close(out[list(RIGHT_ROWS)], known, atol=1e-8, rtol=0)
