"""Query heads that share keys go to the fused kernel as rows of one head, with the same answer."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.functional import fused

KEEP = torch.arange(9) < torch.tensor([[6], [9]])
MASKS = {
    "none": None,
    "padding": mh.Padding(KEEP),
    "a sequence of nobody": mh.Padding(lengths=torch.tensor([0, 9])),
    "its own for each head": mh.PerHead(
        (mh.Causal(), mh.Window(3), mh.Window(2), mh.Padding(KEEP))
    ),
}


def answers(backend: str, q_len: int, mask: mh.Mask | None, bias: Tensor | None) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(2, 4, q_len, 8), (2, 2, 9, 8), (2, 2, 9, 5), (4,)]
    leaves = [torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes]
    q, k, v, sinks = (x.requires_grad_() for x in leaves)
    plain = mh.attention(q, k, v, mask, bias=bias, backend=backend)
    sunk, lse = mh.attention_with_lse(q, k, v, mask, bias=bias, sink_logits=sinks, backend=backend)
    seen = lse.masked_fill(lse == -torch.inf, 0.0)
    loss = plain.square().sum() + sunk.sin().sum() + seen.cos().sum()
    return [plain, sunk, lse, *torch.autograd.grad(loss, (q, k, v, sinks))]


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", [None, (1, 1, 1, 9), (2, 4, 1, 9)], ids=str)
def test_packed_queries_give_the_answer_of_the_reference(
    q_len: int, name: str, shape: tuple[int, ...] | None
) -> None:
    bias = None if shape is None else torch.randn(shape, dtype=torch.float64)
    found, right = (answers(b, q_len, MASKS[name], bias) for b in ("fused", "reference"))
    for ours, exact in zip(found, right, strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("q_len", "mask", "heads"),
    [
        (1, None, 2),
        (1, mh.Causal() & mh.Padding(KEEP), 2),
        (1, MASKS["its own for each head"], 2),
        (3, mh.Padding(KEEP), 2),
        (3, mh.Causal(), 4),  # rows that see differently
    ],
)
def test_decoding_hands_the_kernel_as_many_heads_as_there_are_keys(
    q_len: int, mask: mh.Mask | None, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, met = fused.F.scaled_dot_product_attention, []

    def watched(q: Tensor, *arguments: object, **options: object) -> Tensor:
        met.append(tuple(q.shape))
        return kernel(q, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fused.F, "scaled_dot_product_attention", watched)
    q, k = torch.randn(2, 4, q_len, 8), torch.randn(2, 2, 9, 8)
    mh.attention(q, k, k, mask)
    assert met == [(2, heads, q_len * 4 // heads, 8)]
