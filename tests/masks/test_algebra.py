"""The algebra of masks, for expressions that nobody thought of."""

from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import manyheads as mh
from manyheads.errors import MaskWarning
from manyheads.masks import Mask, bind, plan
from manyheads.masks.facts import Side

pytestmark = pytest.mark.filterwarnings("ignore::manyheads.errors.MaskWarning")

LENGTH, HEADS = 6, 2
KEEP = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1]]).bool()
PADDING = mh.Padding(KEEP)
LEAVES = [
    mh.Causal(),
    mh.Window(2),
    mh.Window(before=1),
    mh.Prefix(2),
    mh.Prefix(torch.tensor([0, 4])),
    mh.Global((0, 3)),
    mh.Global(~KEEP),
    PADDING,
    mh.Documents(torch.tensor([[0, 0, 1, 1, 2, 2], [3, 3, 3, 0, 0, 0]])),
    mh.RandomBlocks(1, block=2, length=12),
    mh.Dilated(2, step=2),
    mh.Strided(3),
    mh.Fixed(3),
    mh.Dyadic(),
    mh.Dyadic("halves"),
    mh.Neighbourhood(3, radius=1),
    mh.Tiles(3, tile=2, shift=1),
    mh.PerHead((mh.Causal(), PADDING)),
    mh.Dense(torch.arange(36).view(6, 6) % 3 > 0),
]
MASKS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a, b: mh.PerHead((a, b)), inner, inner),
    ),
    max_leaves=5,
)
POSITIONS = st.lists(st.integers(-2, 9), min_size=LENGTH, max_size=LENGTH).map(torch.tensor)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def dense(mask: Mask, q_pos: Tensor | None = None, kv_pos: Tensor | None = None) -> Tensor:
    return mask.dense(LENGTH, batch=2, num_heads=HEADS, q_pos=q_pos, kv_pos=kv_pos)


@QUICK
@given(MASKS, MASKS, POSITIONS, POSITIONS)
def test_writing_out_and_joining_commute(a: Mask, b: Mask, q_pos: Tensor, kv_pos: Tensor) -> None:
    there = (q_pos >= 0)[:, None] & (kv_pos >= 0)
    left, right = dense(a, q_pos, kv_pos), dense(b, q_pos, kv_pos)
    assert torch.equal(dense(a & b, q_pos, kv_pos), left & right)
    assert torch.equal(dense(a | b, q_pos, kv_pos), left | right)
    assert torch.equal(dense(~a, q_pos, kv_pos), ~left & there)
    heads = torch.stack((left[:, 0], right[:, 1]), dim=1)
    assert torch.equal(dense(mh.PerHead((a, b)), q_pos, kv_pos), heads)


@QUICK
@given(MASKS, MASKS, MASKS)
def test_the_laws_of_boole_hold(a: Mask, b: Mask, c: Mask) -> None:
    assert torch.equal(dense(~(a & b)), dense(~a | ~b))
    assert torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert torch.equal(dense(a & (b | c)), dense(a & b | a & c))
    assert torch.equal(dense(a | b & c), dense((a | b) & (a | c)))
    assert dense(a | ~a).all() and not dense(a & ~a).any()


@QUICK
@given(MASKS, POSITIONS, POSITIONS)
def test_bounds_are_sound(mask: Mask, q_pos: Tensor, kv_pos: Tensor) -> None:
    q_pos, kv_pos = q_pos.abs(), kv_pos.abs()
    bound = bind(mask, 2, LENGTH, LENGTH, q_pos=q_pos, kv_pos=kv_pos)
    head = torch.arange(HEADS).view(-1, 1, 1)
    seen = bound.rule.allows(head, bound.q.side(-2), bound.kv.side(-1, bound.pairs))
    seen = seen.expand(2, HEADS, LENGTH, LENGTH)
    span = [int(x) for pos in (q_pos, kv_pos) for x in (pos.min(), pos.max())]
    for h in (None, 0, 1):
        some, every = bound.rule.bounds(h, *span)
        pairs = seen if h is None else seen[:, h]
        assert some or not pairs.any()
        assert not every or pairs.all()


@QUICK
@given(MASKS, st.integers(1, 4))
def test_a_plan_shows_just_the_pairs_of_its_mask(mask: Mask, block: int) -> None:
    bound = bind(mask, 2, LENGTH, LENGTH)
    seen = torch.zeros(2, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    for each in plan.plan(bound, 2, HEADS, block):
        sequences = slice(None) if plan.has_no_tensors(bound) else [each.sequence]
        heads = range(HEADS) if each.head is None else [each.head]
        for row in each.rows:
            keys = [key for run in row.runs for key in range(*run)]
            found = each.dense(row, HEADS)
            shown = torch.ones(1, 1, 1, 1).bool() if found is None else found
            shown = shown.expand(1, len(heads), row.stop - row.start, len(keys))
            for place, head in enumerate(heads):
                for at, query in enumerate(range(row.start, row.stop)):
                    for to, key in enumerate(keys):
                        seen[sequences, head, query, key] = shown[0, place, at, to]
    assert torch.equal(seen, bound.dense(HEADS).expand(seen.shape))


@QUICK
@given(MASKS)
def test_what_is_absent_is_seen_by_nobody_and_what_nobody_sees_of_padding_is_absent(
    mask: Mask,
) -> None:
    bound = bind(mask & PADDING, 2, LENGTH, LENGTH)
    assert bound.kv.absent is not None
    assert torch.equal(bound.kv.absent & ~KEEP, ~KEEP)
    assert not (dense(mask & PADDING) & bound.kv.absent[:, None, None]).any()


@pytest.mark.parametrize(
    "join",
    [
        lambda p: (mh.Causal() & p) | (mh.Window(2) & p),
        lambda p: mh.PerHead((mh.Causal() & p, p & mh.Window(1))),
        lambda p: ~~p,
        lambda p: ~(~p | ~mh.Causal()),
        lambda p: (p & mh.Prefix(1)) | ~(~p | mh.Causal()),
    ],
)
def test_padding_that_every_branch_hides_is_absent(join: Callable[[Mask], Mask]) -> None:
    bound = bind(join(PADDING), 2, LENGTH, LENGTH)
    assert bound.kv.absent is not None
    assert torch.equal(bound.kv.absent, ~KEEP)


@pytest.mark.parametrize(
    "join",
    [
        lambda p: p | mh.Causal(),
        lambda p: ~p,
        lambda p: mh.PerHead((p, mh.Causal())),
    ],
)
def test_padding_that_someone_sees_is_not_absent(join: Callable[[Mask], Mask]) -> None:
    assert bind(join(PADDING), 2, LENGTH, LENGTH).kv.absent is None


def test_an_or_that_reopens_the_future_warns() -> None:
    with pytest.warns(MaskWarning, match=r"Causal\(\) & \(\.\.\. \| \.\.\.\)") as caught:
        mh.Causal() & mh.Window(2) | mh.Global(0)
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error::manyheads.errors.MaskWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: mh.Causal() | mh.Prefix(3),
        lambda: mh.Causal() | mh.Prefix(torch.tensor([3])),
        lambda: mh.Window(2) | mh.Global(0),
        lambda: mh.Causal() & (mh.Window(2) | mh.Global(0)),
        lambda: (mh.Causal() & mh.Window(2)) | (mh.Causal() & mh.Global(0)),
    ],
)
def test_an_or_that_is_meant_does_not_warn(make: object) -> None:
    make()  # type: ignore[operator]


@dataclass(frozen=True, eq=False)
class EvenHeads(mh.Mask):
    """Says nothing of positions, so its answer has the heads' axis alone: (heads, 1, 1)."""

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return head % 2 == 0


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_mask_may_answer_in_fewer_dimensions(backend: str) -> None:
    q, even = torch.randn(2, 4, 5, 8), (torch.arange(4) % 2 == 0)[:, None, None]
    right = mh.attention(q, q, q, backend=backend) * even
    for mask in (EvenHeads(), EvenHeads() & mh.Global((0, 1, 2, 3, 4))):
        torch.testing.assert_close(mh.attention(q, q, q, mask, backend=backend), right)
    # Each member is asked about one head, its own.
    split = mh.PerHead((EvenHeads(), ~EvenHeads(), mh.Causal(), EvenHeads()))
    seen = split.dense(5, num_heads=4).sum(dim=(0, 2, 3))
    assert seen.tolist() == [25, 25, 15, 0]
