"""Nobody sees the future, in whatever pieces a sequence arrives."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near
from tests.cases.layers import chunks, plain_layer
from torch import Tensor

import manyheads as mh

SPLITS = [[7], [3, 1, 2, 1], [2, 5], [1] * 7]
FULL = [
    [1.0, 1.625, 0.125, 0.375],
    [0.28855998945868, 0.70012798629629, 0.089427999472934, 0.12599599631054],
    [-0.38008103064492, -0.17674989623725, 0.059415881593558, -0.11225298399877],
    [-0.20194355063637, -0.84345976717862, -0.56806408338463, 0.059319949880605],
    [-0.71924554473424, -1.3799694419966, -0.51475590543609, -0.16014841382185],
    [-0.14011863743549, -0.69772521563963, -0.23253430066865, -0.15989302619429],
    [-0.10248010012168, -1.0411892573246, -0.61902313331115, 0.13349321075571],
]


def whole(batch: int = 1, heads: int = 1, length: int = 7, width: int = 4) -> Exact:
    """CAUS-02: seven tokens of width 4."""
    shape = (batch, heads, length, width)
    allow = np.tri(length, dtype=bool)
    return Exact(*(det(shape, number) for number in (23, 24, 25, 97)), allow=allow)


@every_backend
@every_dtype
@pytest.mark.parametrize("shape", [(1, 1, 7, 4), (2, 3, 5, 8), (1, 2, 1, 4), (3, 1, 9, 3)])
def test_causal_is_honoured_without_any_mask_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, backend: str
) -> None:
    whole(*shape).agrees(dtype, backend, mh.Causal())


@every_backend
@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_first_row_is_the_first_value(length: int, backend: str) -> None:
    q, k, v = (torch.from_numpy(det((1, 1, length, 4), number)) for number in (23, 24, 25))
    near(mh.attention(q, k, v, mh.Causal(), backend=backend)[0, 0, 0], [1, 1.625, 0.125, 0.375])


def positions_of(kind: str, start: int, end: int) -> dict:
    """Positions of queries start to end - 1 against keys 0 to end - 1."""
    match kind:
        case "none":
            return {}
        case "int":
            return {"q_pos": start, "kv_pos": 0}
        case "int, far":
            return {"q_pos": 100_000 + start, "kv_pos": 100_000}
        case "tensor":
            return {"q_pos": torch.arange(start, end), "kv_pos": torch.arange(end)}
        case "tensor for each sequence":
            return {"q_pos": torch.arange(start, end)[None], "kv_pos": torch.arange(end)[None]}
    raise AssertionError(kind)


@every_backend
@every_dtype
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("kind", ["none", "int", "int, far", "tensor", "tensor for each sequence"])
def test_any_split_into_chunks_equals_one_pass(
    kind: str, split: list[int], dtype: torch.dtype, backend: str
) -> None:
    exact = whole()
    q, k, v = leaves = [
        torch.tensor(x, dtype=dtype, requires_grad=True) for x in (exact.q, exact.k, exact.v)
    ]
    rows: list[Tensor] = [
        mh.attention(
            q[:, :, chunk],
            k[:, :, : chunk.stop],
            v[:, :, : chunk.stop],
            mh.Causal(),
            **positions_of(kind, chunk.start, chunk.stop),
            backend=backend,
        )
        for chunk in chunks(split)
    ]
    output = torch.cat(rows, dim=2)
    near(output[0, 0], FULL)
    output.backward(torch.tensor(exact.upstream, dtype=dtype))
    for leaf, expected in zip(leaves, exact.gradients, strict=True):
        near(leaf.grad, expected, share=2)  # chunks round apart and are summed


@every_backend
@pytest.mark.parametrize(("q_pos", "kv_pos"), [(2, 0), (0, 2), (3, 3), (0, 9)])
def test_equal_lengths_do_not_make_equal_positions(q_pos: int, kv_pos: int, backend: str) -> None:
    """A neighbour of CAUS-02: torch's is_causal would align the first query with the first key."""
    shape = (1, 2, 5, 4)
    allow = np.greater_equal.outer(np.arange(5) + q_pos, np.arange(5) + kv_pos)
    exact = Exact(*(det(shape, number) for number in (23, 24, 25, 97)), allow=allow)
    exact.agrees(torch.float64, backend, mh.Causal(), q_pos=q_pos, kv_pos=kv_pos)


@every_backend
def test_later_tokens_never_reach_earlier_rows(backend: str) -> None:
    q, k, v = (torch.from_numpy(det((1, 2, 7, 4), number)) for number in (23, 24, 25))
    before = mh.attention(q, k, v, mh.Causal(), backend=backend)
    for token in range(7):
        k_later, v_later = k.clone(), v.clone()
        k_later[:, :, token:] += 1.0
        v_later[:, :, token:] -= 1.0
        after = mh.attention(q, k_later, v_later, mh.Causal(), backend=backend)
        assert torch.equal(after[:, :, :token], before[:, :, :token])
        assert not torch.allclose(after[:, :, token:], before[:, :, token:])


@pytest.mark.parametrize("split", SPLITS, ids=str)
@every_backend
@every_dtype
def test_a_cache_goes_on_where_it_stopped(
    dtype: torch.dtype, backend: str, split: list[int]
) -> None:
    exact, cache = whole(), mh.GrowingCache()
    q, k, v = leaves = [
        torch.tensor(x, dtype=dtype, requires_grad=True) for x in (exact.q, exact.k, exact.v)
    ]
    rows = []
    for chunk in chunks(split):
        held = cache.append(k[:, :, chunk], v[:, :, chunk])
        rows.append(mh.attention(q[:, :, chunk], held.k, held.v, mh.Causal(), backend=backend))
    output = torch.cat(rows, dim=2)
    near(output[0, 0], FULL)
    output.backward(torch.tensor(exact.upstream, dtype=dtype))
    for leaf, expected in zip(leaves, exact.gradients, strict=True):
        near(leaf.grad, expected, share=2)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_a_layer_gives_for_every_split_what_it_gives_at_once(grad: bool, split: list[int]) -> None:
    layer = mh.MultiHeadAttention(
        16, 4, num_kv_heads=2, rotary=mh.Rotary(4), qk_norm="rms", dtype=torch.float64
    )
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        once = layer(x, mask=mh.Causal())
        cache = mh.GrowingCache()
        rows = [layer(x[:, chunk], mask=mh.Causal(), cache=cache) for chunk in chunks(split)]
    near(torch.cat(rows, dim=1), once.detach().numpy())
    if grad:
        upstream = torch.randn_like(once)
        inputs = list(layer.parameters())
        expected = torch.autograd.grad(once, inputs, upstream)
        found = torch.autograd.grad(torch.cat(rows, dim=1), inputs, upstream)
        for got, right in zip(found, expected, strict=True):
            near(got, right.numpy())


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 5), (5, 3), (4, 4), (1, 6)])
@pytest.mark.parametrize(
    "mask",
    [mh.Causal(), ~mh.Causal(), mh.Window(2), mh.Window(2) | mh.Global(0), mh.Prefix(1)],
    ids=str,
)
def test_a_layer_stands_its_queries_where_the_function_does(
    mask: mh.Mask, q_len: int, kv_len: int
) -> None:
    """The last of the context; where they are more than its keys, the first see nobody."""
    x, context = torch.from_numpy(det((2, q_len, 4), 23)), torch.from_numpy(det((2, kv_len, 4), 24))
    q, k = x[:, None], context[:, None]
    near(
        plain_layer(4, 1)(x, context, mask=mask), mh.attention(q, k, k, mask)[:, 0].detach().numpy()
    )
