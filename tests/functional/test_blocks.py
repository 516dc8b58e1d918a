"""The block-sparse backend: exact, chosen where it gains, in memory that grows with the length."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import BackendError
from manyheads.functional import BACKENDS, Auto, attention, blocks, tiles
from manyheads.laws import check_backend

WIDE = {
    "window": mh.Causal() & mh.Window(70),
    "lopsided": mh.Window(before=90, after=5),
    "longformer": mh.Window(40) | mh.Global((3, 200)),
    "bigbird": mh.Window(64) | mh.Global(0) | mh.RandomBlocks(2, block=32, length=333),
    "dyadic": mh.Causal() & mh.Dyadic(),
    "each its own": mh.PerHead((mh.Causal(), mh.Window(9), ~mh.Causal(), mh.Window(80))),
}


def answers(q: Tensor, k: Tensor, v: Tensor, mask: mh.Mask, backend: str) -> list[Tensor]:
    """The output, its log-sum-exp, and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    output, lse = mh.attention_with_lse(*leaves, mask, backend=backend)
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(output.shape, generator=draw, dtype=output.dtype)
    loss = (output * weight).sum() + lse.masked_fill(lse == -torch.inf, 0.0).sin().sum()
    return [output, lse, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("block", [pytest.param(2, marks=pytest.mark.long), 5])
def test_blocks_of_any_size_keep_every_law(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(tiles, "KEYS_AT_ONCE", 12)
    check_backend("blocks")


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("lengths", [(333, 333), (100, 333)])
def test_many_blocks_give_the_answer_of_the_reference(name: str, lengths: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, lengths[0], 8, generator=draw, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, lengths[1], 8, generator=draw, dtype=torch.float64)
    right = answers(q, k, v, WIDE[name], "reference")
    for found, exact in zip(answers(q, k, v, WIDE[name], "blocks"), right, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)


def test_auto_takes_blocks_for_long_windows_and_leaves_the_rest() -> None:
    def chosen(mask: mh.Mask | None, length: int) -> str:
        q = torch.empty(1, 8, length, 64, device="meta")
        return mh.explain(q, q, q, mask, verbose=False).chosen

    window = mh.Causal() & mh.Window(128)
    assert chosen(window, 4096) == "blocks"
    assert chosen(mh.Window(64) | mh.Global(0), 4096) == "blocks"
    assert chosen(window, 512) == "fused"
    assert chosen(mh.Causal() & mh.Window(3000), 4096) == "fused"
    assert chosen(mh.Causal(), 4096) == chosen(None, 4096) == "fused"


def test_compiled_code_falls_back_to_the_fused_kernel() -> None:
    q = torch.randn(1, 1, 1100, 4)
    mask = mh.Causal() & mh.Window(16)
    compiled = torch.compile(lambda q: attention(q, q, q, mask), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q), attention(q, q, q, mask))


def test_memory_grows_with_the_length_of_a_window_not_its_square() -> None:
    def extra(length: int) -> int:
        q = torch.empty(1, 8, length, 64, device="meta")
        rows = mh.explain(q, q, q, mh.Causal() & mh.Window(256), verbose=False).rows
        found = next(row.extra_bytes for row in rows if row.backend == "blocks")
        assert found is not None
        return found

    assert extra(32768) <= extra(8192) < 16e6


def test_never_quadratic_takes_blocks_where_auto_would_write_the_mask() -> None:
    q = torch.randn(1, 2, 40, 8)
    for mask in (mh.Causal() & mh.Window(4), mh.Causal(), None):
        found = attention(q, q, q, mask, backend=Auto(never_quadratic=True))
        torch.testing.assert_close(found, attention(q, q, q, mask, backend="reference"))
    strict = Auto(never_quadratic=True)
    assert mh.explain(q, q, q, mh.Window(4), backend=strict, verbose=False).chosen == "blocks"
    assert mh.explain(q, q, q, mh.Window(4), backend=Auto(), verbose=False).chosen == "fused"
    assert mh.explain(q, q, q, backend=strict, verbose=False).chosen == "fused"


def test_never_quadratic_raises_rather_than_write_all_pairs() -> None:
    q = torch.randn(1, 2, 40, 8)
    strict = Auto(never_quadratic=True)
    with pytest.raises(
        BackendError, match=r"of linear memory.*chunked: it never holds all weights"
    ):
        mh.attention_with_weights(q, q, q, backend=strict)
    with pytest.raises(BackendError, match="reference: it makes a tensor of q_len x kv_len"):
        mh.attention_with_weights(q, q, q, backend=strict)
    one = q[:, :, :1]  # a single query has no square
    mh.attention_with_weights(one, q, q, backend=strict)
    for options in ({"softcap": 3.0}, {"dropout": 0.1}, {"bias": torch.zeros(40, 40)}):
        table = mh.explain(q, q, q, mh.Window(4), **options, backend=strict, verbose=False)
        assert table.chosen == "chunked"


def test_no_backend_that_calls_itself_linear_writes_a_mask_of_pairs() -> None:
    q = torch.zeros(1, 2, 64, 8, device="meta")
    for mask in (mh.Window(4), mh.Causal() & mh.Window(4), mh.Causal() & mh.Global(3)):
        table = mh.explain(q, q, q, mask, backend=Auto(never_quadratic=True), verbose=False)
        assert table.chosen == "blocks" and set(BACKENDS) == {row.backend for row in table.rows}
