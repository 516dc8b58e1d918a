"""Padded and packed batches without their padding: exact, and chosen where that gains."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.functional import varlen
from manyheads.laws import check_backend
from manyheads.masks import bind
from manyheads.masks.segments import segments

LENGTHS = torch.tensor([3, 0, 9, 5])
IDS = torch.tensor([[0, 0, 0, 1, 1, 7, 7, 7, 7]]).expand(4, 9)
LEFT = torch.arange(9) - torch.tensor([0, 2, 9, 4])[:, None]


def test_varlen_keeps_every_law() -> None:
    check_backend("varlen")


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        (mh.Padding(lengths=LENGTHS), None),
        (mh.Causal() & mh.Padding(lengths=LENGTHS), None),
        (mh.Causal() & mh.Documents(IDS), None),
        (mh.Documents(IDS) & mh.Padding(lengths=LENGTHS) & mh.Window(2), None),
        (mh.Causal(), LEFT),
        (mh.Causal() & mh.Window(3), LEFT),
        (None, LEFT),
    ],
)
def test_ragged_batches_give_the_answer_of_the_reference(
    mask: mh.Mask | None, positions: Tensor | None
) -> None:
    draw = torch.Generator().manual_seed(0)
    shape = (4, 2, 9, 8)
    leaves = [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(3)]
    weight = torch.randn(shape, generator=draw, dtype=torch.float64)
    found = []
    for backend in ("reference", "varlen"):
        q, k, v = (leaf.clone().requires_grad_() for leaf in leaves)
        output, lse = mh.attention_with_lse(
            q, k, v, mask, q_pos=positions, kv_pos=positions, backend=backend
        )
        loss = (output * weight).sum() + lse.masked_fill(lse == -torch.inf, 0.0).sum()
        found.append([output, lse, *torch.autograd.grad(loss, (q, k, v))])
    for ours, right in zip(*reversed(found), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-10, atol=1e-10)


def test_documents_are_segments_and_absent_tokens_are_in_none() -> None:
    def spans(mask: mh.Mask) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        found = segments(bind(mask, 4, 9, 9), 0)
        assert found is not None
        return [(segment.q, segment.kv) for segment in found]

    assert spans(mh.Documents(IDS)) == [((0, 3), (0, 3)), ((3, 5), (3, 5)), ((5, 9), (5, 9))]
    assert spans(mh.Padding(lengths=LENGTHS)) == [((0, 9), (0, 3))]
    # Those after the padding see all real keys; those before it are causal.
    padded = mh.Causal() & mh.Padding(lengths=LENGTHS)
    assert spans(padded) == [((0, 3), (0, 3)), ((3, 9), (0, 3))]
    assert segments(bind(mh.Documents(torch.arange(9)[None] % 2), 1, 9, 9), 0) is None


def test_auto_takes_it_for_half_empty_batches_and_long_documents() -> None:
    q = torch.zeros(2, 1, 1024, 8)
    half = mh.Padding(lengths=torch.tensor([400, 600]))
    full = mh.Padding(lengths=torch.tensor([1000, 1024]))
    ids = (torch.arange(1024)[None] // 256).expand(2, -1)
    scattered = (torch.arange(1024)[None] % 4).expand(2, -1)

    def chosen(mask: mh.Mask) -> str:
        return mh.explain(q, q, q, mask, verbose=False).chosen

    assert chosen(half) == chosen(mh.Causal() & mh.Documents(ids)) == "varlen"
    assert chosen(full) == chosen(mh.Documents(scattered)) == "fused"
    assert chosen(mh.Documents(torch.arange(1024)[None].expand(2, -1) // 16)) != "varlen"
    assert varlen.SHORTEST > 16


def test_sinks_beside_queries_that_stand_nowhere_leave_lengths_alone() -> None:
    q, k, v = (torch.randn(4, 2, 9, 8, dtype=torch.float64) for _ in range(3))
    sinks = torch.tensor([0.5, -1.0], dtype=torch.float64)
    found = [
        mh.attention(q, k, v, sink_logits=sinks, q_pos=LEFT, kv_pos=LEFT, backend=backend)
        for backend in ("reference", "varlen")
    ]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
