"""Stretches laid end to end for the varlen kernel of CUDA; here a loop stands in for the kernel."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen as theirs

import manyheads as mh
from manyheads.functional import packed
from manyheads.functional.call import prepare
from manyheads.functional.packed import near
from manyheads.laws.calls import USUAL
from manyheads.masks import bind
from manyheads.masks.segments import segments

LENGTHS = torch.tensor([3, 0, 9, 5])
IDS = torch.tensor([[0, 0, 0, 1, 1, 7, 7, 7, 7]]).expand(4, 9)
LEFT = torch.arange(9) - torch.tensor([0, 2, 9, 4])[:, None]


def one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_starts: Tensor,
    kv_starts: Tensor,
    q_longest: int,
    kv_longest: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What torch's `varlen_attn` is documented to do."""
    assert q.shape[2] == k.shape[2] == v.shape[2] and q.shape[2] % 8 == 0
    assert q_starts.dtype == kv_starts.dtype == torch.int32
    assert (q_starts[-1], kv_starts[-1]) == (len(q), len(k)), "tokens that no stretch holds"
    assert q_longest == q_starts.diff().max() and kv_longest == kv_starts.diff().max()
    assert (q_starts.diff() > 0).all() and (kv_starts.diff() > 0).all()
    before, after = (None if size < 0 else size for size in window_size)
    mask = None if window_size == (-1, -1) else mh.Window(before=before, after=after)
    outputs = []
    for i in range(len(q_starts) - 1):
        queries = slice(int(q_starts[i]), int(q_starts[i + 1]))
        keys = slice(int(kv_starts[i]), int(kv_starts[i + 1]))
        parts = (x.transpose(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        output = mh.attention(*parts, mask, scale=scale, backend="reference")
        outputs.append(output[0].transpose(0, 1))
    assert enable_gqa == (q.shape[1] != k.shape[1])
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        (mh.Padding(lengths=LENGTHS), None),
        (mh.Causal() & mh.Padding(lengths=LENGTHS), None),
        (mh.Causal() & mh.Documents(IDS), None),
        (mh.Documents(IDS) & mh.Padding(lengths=LENGTHS), None),
        (mh.Causal() & mh.Documents(IDS) & mh.Window(2), None),
        (mh.Documents(IDS) & mh.Window(before=1, after=2), None),
        (mh.Causal(), LEFT),
        (mh.Causal() & mh.Window(3), LEFT),
        (mh.Padding(lengths=torch.zeros(4, dtype=torch.int64)), None),
    ],
)
def test_stretches_end_to_end_give_the_answer_of_the_reference(
    mask: mh.Mask, positions: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theirs, "varlen_attn", one_by_one)
    leaves = [torch.randn(4, heads, 9, width).double() for heads, width in ((4, 6), (2, 6), (2, 3))]
    weight, found = torch.randn(4, 4, 9, 3).double(), []
    for backend in ("reference", "packed"):
        q, k, v = (leaf.clone().requires_grad_() for leaf in leaves)
        if backend == "packed":
            given = {"q": q, "k": k, "v": v, "mask": mask, "q_pos": positions, "kv_pos": positions}
            call = prepare(**(USUAL | given))
            assert call.mask is not None
            rows = tuple(segments(call.mask, sequence) or [] for sequence in range(4))
            assert packed.serves(rows)
            output = packed.run(call, rows).output
        else:
            output = mh.attention(
                q, k, v, mask, q_pos=positions, kv_pos=positions, backend="reference"
            )
        loss = (output * weight).sum()
        found.append([output, *torch.autograd.grad(loss, (q, k, v), materialize_grads=True)])
    for ours, right in zip(*reversed(found), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-10, atol=1e-10)


def test_the_kernel_is_asked_for_windows_only_where_its_alignment_is_certain() -> None:
    assert near(bind(mh.Causal(), 1, 5, 5)) == (-1, 0)
    assert near(bind(None, 1, 3, 5)) == (-1, -1)
    assert near(bind(mh.Causal() & mh.Window(3), 1, 5, 5)) == (2, 0)
    assert near(bind(mh.Window(before=1), 1, 5, 5)) == (1, -1)
    assert near(bind(mh.Causal() & mh.Window(before=4, after=1) & mh.Window(2), 1, 9, 9)) == (1, 0)
    assert near(bind(mh.Causal(), 1, 3, 5)) is None  # aligned to the last key, or to the first?
    assert near(bind(mh.Window(2) | mh.Global(3), 1, 5, 5)) is None
    assert near(bind(mh.Padding(lengths=[3]), 1, 5, 5)) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "for 16 bits"),
        ({"q": torch.zeros(1, 1, 2, 300), "k": torch.zeros(1, 1, 2, 300)}, "at most 256 wide"),
        ({"need": "lse"}, "no gradient"),
        ({"scale": -1.0}, "a scale above 0"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(changes: dict[str, object], why: str) -> None:
    x = torch.zeros(1, 1, 2, 8)
    call = prepare(**(USUAL | {"q": x, "k": x, "v": x, "mask": None} | changes))  # type: ignore[arg-type]
    assert any(why in refusal.why for refusal in packed.refusals(call))
