"""A block plan leaves out no pair that is seen, and few that are not."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.laws.calls import BackendCase, masks
from manyheads.masks import Mask, bind, plan

CASE = BackendCase(q_len=21, kv_len=21, batch=2, num_heads=2)
PATTERNS = {
    **{name: mask for name, mask in masks(CASE).items() if isinstance(mask, Mask)},
    "bigbird": mh.Window(3) | mh.Global(2) | mh.RandomBlocks(2, block=3, length=21),
    "dyadic": mh.Causal() & mh.Dyadic(),
    "dilated": mh.Dilated(3, step=4),
}


def spread(
    mask: Mask, block: int, q_pos: int | Tensor | None = None, length: int = 21
) -> tuple[Tensor, Tensor]:
    """The pairs that a plan shows and those that a mask does, bool (batch, heads, q, kv)."""
    bound = bind(mask, 2, length, length, q_pos=q_pos, kv_pos=None if q_pos is None else 0)
    seen = torch.zeros(2, 2, length, length, dtype=torch.bool)
    plans = plan.plan(bound, 2, 2, block)
    for each in plans:
        alike = plan.has_no_tensors(bound)
        sequences = slice(None) if alike else slice(each.sequence, each.sequence + 1)
        heads = slice(None) if each.head is None else slice(each.head, each.head + 1)
        for row in each.rows:
            index = torch.cat([torch.arange(*run) for run in row.runs])
            found = each.dense(row, 2)
            part = torch.ones(1, 1, 1, 1, dtype=torch.bool) if found is None else found
            whole = seen[sequences, heads, row.start : row.stop]
            whole[..., index] = part.expand(*whole.shape[:3], len(index))
    right = bound.dense(2).expand(2, 2, length, length)
    return seen, right


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("block", [1, 2, 5, 32])
def test_a_plan_shows_just_the_pairs_of_its_mask(name: str, block: int) -> None:
    seen, right = spread(PATTERNS[name], block)
    assert torch.equal(seen, right)


@pytest.mark.parametrize("block", [1, 4])
def test_positions_in_any_order_are_planned_as_well(block: int) -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        position = torch.randint(-3, 30, (2, 21), generator=draw)
        seen, right = spread(mh.Causal() & (mh.Window(4) | mh.Global(3)), block, position)
        assert torch.equal(seen, right)


def test_documents_and_padding_leave_out_the_blocks_of_others() -> None:
    ids = torch.arange(16)[None] // 4
    bound = bind(mh.Documents(ids) & mh.Padding(lengths=torch.tensor([12])), 1, 16, 16)
    (found,) = plan.plan(bound, 1, 1, 4)
    assert [row.runs for row in found.rows] == [((0, 4),), ((4, 8),), ((8, 12),)]
    assert all(row.likeness is None for row in found.rows)


def test_rows_that_see_alike_say_so() -> None:
    bound = bind(mh.Causal() & (mh.Window(256) | mh.Global(4)), 1, 4096, 4096)
    (found,) = plan.plan(bound, 1, 8, 64)
    assert len({row.likeness for row in found.rows}) < 8 < len(found.rows) == 64


def test_only_plans_without_tensors_are_kept() -> None:
    kept = [plan.plan(bind(mh.Window(3), 1, 9, 9), 1, 1, 2) for _ in range(2)]
    assert kept[0] is kept[1]
    before = dict(plan._PLANS)
    plan.plan(bind(mh.Padding(torch.ones(1, 9).bool()), 1, 9, 9), 1, 1, 2)
    plan.plan(bind(mh.Causal(), 1, 9, 9, q_pos=torch.arange(9), kv_pos=0), 1, 1, 2)
    assert before == plan._PLANS


def test_a_mask_is_judged_in_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, bounds = [], mh.Window.bounds
    monkeypatch.setattr(mh.Window, "bounds", lambda *a: asked.append(a) or bounds(*a))
    bound = bind(mh.Causal() & mh.Window(255), 1, 32768, 32768)
    plan.plan(bound, 1, 1, 64)
    assert len(asked) < 20 * 512  # and not 512 * 512
