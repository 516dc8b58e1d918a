"""Each mask, drawn by hand: a line a query, █ where it may see a key."""

import pytest
import torch

import manyheads as mh

DRAWINGS = {
    "causal": (mh.Causal(), 3, 3, "█·· ██· ███"),
    "causal, the last two of four": (mh.Causal(), 2, 4, "███· ████"),
    "causal, more queries than keys": (mh.Causal(), 4, 2, "·· ·· █· ██"),
    "window both ways": (mh.Window(2), 4, 4, "██·· ███· ·███ ··██"),
    "causal window of two keys": (mh.Causal() & mh.Window(2), 4, 4, "█··· ██·· ·██· ··██"),
    "window of neighbours": (mh.Window(before=0, after=2), 4, 4, "███· ·███ ··██ ···█"),
    "window open to the past": (mh.Window(after=1), 3, 3, "██· ███ ███"),
    "window open to the future": (mh.Window(before=1), 3, 3, "███ ███ ·██"),
    "padding": (mh.Padding(torch.tensor([[True, False, True]])), 2, 3, "█·█ █·█"),
    "lengths": (mh.Padding(lengths=torch.tensor([1])), 2, 3, "█·· █··"),
    "no real token": (mh.Padding(lengths=torch.tensor([0])), 1, 3, "···"),
    "documents": (mh.Documents(torch.tensor([[4, 4, 2]])), 3, 3, "██· ██· ··█"),
    "documents across": (
        mh.Documents(torch.tensor([[0, 1, 1]]), torch.tensor([[1, 7]])),
        2,
        3,
        "·██ ···",
    ),
    "documents, the last two": (mh.Documents(torch.tensor([[0, 1, 1]])), 2, 3, "·██ ·██"),
    "prefix": (mh.Causal() | mh.Prefix(2), 3, 3, "██· ██· ███"),
    "prefix lengths": (mh.Prefix(torch.tensor([1])), 2, 3, "█·· █··"),
    "global": (mh.Global(1), 3, 3, "·█· ███ ·█·"),
    "global tags": (mh.Global(torch.tensor([[False, False, True]])), 3, 3, "··█ ··█ ███"),
    "nobody global": (mh.Global(()), 1, 2, "··"),
    "rule": (mh.Rule(lambda head, q, kv: q == kv + 1, "before"), 3, 3, "··· █·· ·█·"),
    "dense": (mh.Dense(torch.tensor([[True, False], [False, False]])), 2, 2, "█· ··"),
    "not": (~mh.Causal(), 3, 3, "·██ ··█ ···"),
    "dilated": (mh.Dilated(2, step=2), 5, 5, "█·█·· ·█·█· █·█·█ ·█·█· ··█·█"),
    "strided": (mh.Causal() & mh.Strided(2), 5, 5, "█···· ██··· ███·· ·███· █·███"),
    "fixed": (mh.Causal() & mh.Fixed(2), 5, 5, "█···· ██··· ·██·· ·███· ·█·██"),
    "fixed, two of three": (mh.Fixed(3, summary=2), 4, 4, "███· ███· ███· ·███"),
    "dyadic": (mh.Causal() & mh.Dyadic(), 6, 6, "█····· ██···· ███··· ·███·· █·███· ·█·███"),
    "halves": (mh.Dyadic("halves"), 5, 5, "█···· ███·· ·██·█ ·█·█· ··█·█"),
    "longformer": (mh.Window(2) | mh.Global(3), 5, 5, "██·█· ████· ·███· █████ ···██"),
    "packing": (
        mh.Causal() & mh.Documents(torch.tensor([[0, 0, 1, 1, 1]])),
        5,
        5,
        "█···· ██··· ··█·· ··██· ··███",
    ),
    # Pixels of two rows of three: 0 1 2 / 3 4 5.
    "neighbourhood": (
        mh.Neighbourhood(width=3, radius=1),
        6,
        6,
        "██·██· ██████ ·██·██ ██·██· ██████ ·██·██",
    ),
    # Pixels of three rows of three, cut as 01|2 / 34|5 // 67|8, and as 0|12 // 3|45 / 6|78.
    "tiles": (
        mh.Tiles(3, tile=2),
        9,
        9,
        "██·██···· ██·██···· ··█··█··· ██·██···· ██·██···· ··█··█··· ······██· ······██· ········█",
    ),
    "shifted tiles": (
        mh.Tiles(3, tile=2, shift=1),
        9,
        9,
        "█········ ·██······ ·██······ ···█··█·· ····██·██ ····██·██ ···█··█·· ····██·██ ····██·██",
    ),
    # What seeds draw, on every machine: seed 0 the key blocks 1 2 2 2, seed 7 the blocks 0 1 0 2.
    "random blocks": (
        mh.RandomBlocks(1, block=2, length=8),
        8,
        8,
        "··██···· ··██···· ····██·· ····██·· ····██·· ····██·· ····██·· ····██··",
    ),
    "bigbird": (
        mh.Window(2) | mh.Global(0) | mh.RandomBlocks(1, block=2, length=8, seed=7),
        8,
        8,
        "████████ ███····· ████···· █·███··· ██·███·· ██··███· █···████ █···████",
    ),
    "and binds tighter": (mh.Causal() & (mh.Window(1) | mh.Global(0)), 3, 3, "█·· ██· █·█"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_drawing_is_the_one_made_by_hand(name: str) -> None:
    mask, q_len, kv_len, drawing = DRAWINGS[name]
    assert mask.draw(q_len, kv_len).split() == drawing.split()


def test_each_head_follows_its_own_mask() -> None:
    mask = mh.PerHead((mh.Causal(), mh.Window(1)))
    assert mask.draw(2, num_heads=2) == "batch 0 head 0\n█·\n██\n\nbatch 0 head 1\n█·\n·█"


def test_positions_decide_and_not_indices() -> None:
    q_pos, kv_pos = torch.tensor([5, 0]), torch.tensor([6, 5, 0, -1])
    assert mh.Causal().draw(2, 4, q_pos=q_pos, kv_pos=kv_pos) == "·██·\n··█·"
    assert (~mh.Causal()).draw(2, 4, q_pos=q_pos, kv_pos=kv_pos) == "█···\n██··"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_narrow_positions_do_not_wrap(dtype: torch.dtype) -> None:
    positions = torch.tensor([0, 100, 120]).to(dtype)
    seen = mh.Rule(lambda head, q, kv: (q - kv < 2) & (q * kv >= 0), "wraps in eight bits")
    assert seen.draw(3, q_pos=positions, kv_pos=positions) == "███\n·██\n··█"


def test_a_description_counts_pairs_and_empty_rows() -> None:
    description = mh.Causal().describe(4, 2)
    assert (description.seen, description.pairs, description.density) == (3, 8, 0.375)
    assert description.empty_rows == ((0, 0, 0), (0, 0, 1))
    assert repr(description) == (
        "Causal(): 3 of 8 pairs (37.5 %), 2 empty rows: batch 0 head 0 query 0, batch 0 head 0 "
        "query 1"
    )


def test_a_description_says_whose_rows_are_empty() -> None:
    far = mh.PerHead((mh.Causal(), mh.Causal() & ~mh.Window(3)))
    description = far.describe(5, batch=2, num_heads=2)
    assert description.empty_rows == tuple((b, 1, q) for b in (0, 1) for q in (0, 1, 2))
    q, k, v = (torch.randn(2, 2, 5, 4, requires_grad=True) for _ in range(3))
    out = mh.attention(q, k, v, far)
    assert out[:, 1, :3].eq(0).all() and out[:, 1, 3:].ne(0).any() and out[:, 0].ne(0).any()
    out.sum().backward()
    assert q.grad is not None and q.grad[:, 1, :3].eq(0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_a_description_of_nothing_divides_by_nothing() -> None:
    assert repr(mh.Causal().describe(0)) == "Causal(): 0 of 0 pairs (0.0 %), no empty row"


def test_a_long_list_of_empty_rows_is_cut_short() -> None:
    nobody = ~(mh.Window(1) | ~mh.Window(1))
    assert repr(nobody.describe(4)).endswith("batch 0 head 0 query 2, ...")


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (mh.Causal() & (mh.Window(8) | mh.Global(0)), "Causal() & (Window(8) | Global(0))"),
        (~(mh.Causal() & mh.Window(2)), "~(Causal() & Window(2))"),
        (mh.Window(before=3, after=0), "Window(before=3, after=0)"),
        (mh.Global((5, 0)), "Global((0, 5))"),
        (mh.PerHead((mh.Causal(), mh.Window(2))), "PerHead((Causal(), Window(2)))"),
        (mh.Padding(torch.ones(2, 3).bool()), "Padding(keep of (2, 3))"),
        (mh.Padding(lengths=torch.arange(9)), "Padding(lengths of (9,))"),
        (mh.Prefix(torch.tensor([1, 2])), "Prefix(lengths of (2,))"),
        (mh.Dense(torch.ones(3, 4).bool()), "Dense(3 x 4)"),
    ],
)
def test_a_mask_prints_as_it_is_written(mask: mh.Mask, text: str) -> None:
    assert repr(mask) == text
