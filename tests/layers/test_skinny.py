import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from manyheads.layers import copies, skinny
from manyheads.layers.copies import ORDERS, Copies, Copy, Map, Order
from manyheads.layers.skinny import PATIENCE, Skinny, fastest, ways


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_way_gives_the_product(dtype: torch.dtype, rows: int, bias: bool) -> None:
    x, weight, add = (torch.randn(*s, dtype=dtype) for s in ((rows, 48), (2**13 + 3, 48), (8195,)))
    wanted = F.linear(x.double(), weight.double(), add.double() if bias else None)
    for way in ways(dtype):
        found = way(x, weight, add if bias else None)
        assert found.dtype == dtype and found.shape == (rows, 8195)
        # Sums of 48 products are in fp32 at least; 16-bit outputs are rounded once or twice.
        atol = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 0.3)
        assert_close(found.double(), wanted, rtol=0, atol=atol)


def test_pieces_of_any_number_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 6).bfloat16(), torch.randn(11, 6).bfloat16()
    for piece in (1, 12, 30, 66, 100):
        monkeypatch.setattr(skinny, "_PIECE", piece)
        found = skinny._widened(x, weight, None)
        assert_close(found, (x.float() @ weight.float().t()).bfloat16(), rtol=0, atol=0)


def of_time(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[Callable[[], object]]:
    """Calls of which each takes so long by a clock of our own."""
    clock = [0.0]

    def call(length: float) -> Callable[[], object]:
        def compute() -> None:
            clock[0] += length

        return compute

    monkeypatch.setattr(skinny.time, "perf_counter", lambda: clock[0])
    return [call(length) for length in seconds]


def test_the_fastest_is_taken_if_it_surely_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast, ties = of_time(monkeypatch, 1.0, 0.5, 0.95)
    assert fastest([slow, ties, fast]) == 2
    assert fastest([slow, ties]) == 0


def test_a_shape_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(skinny, "_WAYS", {})
    monkeypatch.setattr(skinny, "fastest", lambda calls: measured.append(rows) or 0)
    for rows in (1, 1, 5, 7, 8, 9):
        Skinny((torch.randn(4, 3), None))(torch.randn(rows, 3))
    assert measured == [1, 5, 9]
    rows = 1
    Skinny((torch.randn(3, 4), None))(torch.randn(1, 4))
    assert measured == [1, 5, 9, 1]


def test_a_change_of_the_weight_in_place_is_seen() -> None:
    weight, x = torch.randn(4, 3), torch.randn(2, 3)
    linear = Skinny((weight, None))
    linear(x)
    weight.mul_(2)
    assert_close(linear(x), F.linear(x, weight))


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """The last order there is always gains, and nothing is known or kept beforehand."""
    kept = Copies()
    for name, value in (("_WAYS", {}), ("_ORDERS", {}), ("_COPIES", kept)):
        monkeypatch.setattr(skinny, name, value)
    monkeypatch.setattr(skinny, "fastest", lambda calls: len(calls) - 1)
    return kept


def maps_of(dtype: torch.dtype, *heights: int) -> list[Map]:
    torch.manual_seed(0)
    sizes = [(torch.randn(n, 16), torch.randn(n)) for n in heights]
    return [(w.to(dtype), b.to(dtype) if i % 2 else None) for i, (w, b) in enumerate(sizes)]


def together(maps: list[Map], x: Tensor) -> Tensor:
    products = [
        F.linear(x.double(), w.double(), None if b is None else b.double()) for w, b in maps
    ]
    return torch.cat(products, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("heights", [(24,), (8, 40, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_copy_gives_the_product(
    copying: Copies, dtype: torch.dtype, heights: tuple[int, ...]
) -> None:
    maps, x = maps_of(dtype, *heights), torch.randn(3, 16)
    linear = Skinny(*maps)
    for _ in range(PATIENCE):
        linear(x)
    assert copying.find(maps, ORDERS[1 if dtype == torch.float32 else 2]) is not None
    # Products of 16-bit weights with fp32 rows: the copy rounds less than torch does.
    assert_close(linear(x).double(), together(maps, x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_every_order_gives_the_product(order: Order) -> None:
    maps = maps_of(torch.float32 if order.fits(torch.ones(1, 1)) else torch.bfloat16, 31, 9)
    for rows in (1, 2, 8, 32):
        x = torch.randn(rows, 16)
        assert_close(Copy(maps, order)(x).double(), together(maps, x), rtol=1e-5, atol=1e-5)


def grow(weight: Tensor) -> None:
    weight.mul_(2)


def replace(weight: Tensor) -> None:
    weight.data = weight.data * 2


@torch.no_grad()
@pytest.mark.parametrize("change", [grow, replace])
@pytest.mark.parametrize("of", [0, 1], ids=["first map", "second map"])
def test_a_copy_is_left_at_once_when_its_weight_changes(
    copying: Copies, of: int, change: Callable[[Tensor], None]
) -> None:
    maps, x = maps_of(torch.float32, 24, 8), torch.randn(3, 16)
    linear = Skinny(*maps)
    for _ in range(PATIENCE + 1):
        linear(x)
    change(maps[of][0])
    assert_close(linear(x).double(), together(maps, x), rtol=1e-5, atol=1e-5)


def turn_rows(weight: Tensor) -> None:
    weight.data.copy_(weight.data.flip(0))


def one_bit(weight: Tensor) -> None:
    weight.data.view(torch.int32)[5, 3] ^= 1


@torch.no_grad()
@pytest.mark.parametrize("change", [turn_rows, one_bit])
def test_a_change_past_the_count_of_torch_is_seen_by_the_next_text(
    copying: Copies, change: Callable[[Tensor], None]
) -> None:
    maps, order = maps_of(torch.float32, 24), ORDERS[0]
    copying.make(maps, order)
    assert copying.find(maps, order) is not None
    change(maps[0][0])
    assert copying.find(maps, order) is None


def test_copies_keep_within_their_room_and_die_with_their_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, order = Copies(), ORDERS[0]
    first, second = maps_of(torch.float32, 24), maps_of(torch.float32, 24)
    monkeypatch.setattr(copies, "MOST_BYTES", 24 * 16 * 4 + 8)
    assert kept.make(first, order) is not None
    assert kept.make(first, order) is not None  # in place of the older one
    assert kept.make(second, order) is None
    del first
    gc.collect()
    assert kept.make(second, order) is not None


@pytest.mark.parametrize("large", [1e9, 1e-9, float("inf"), float("nan")])
def test_weights_beyond_fp16_have_no_copy_in_it(large: float) -> None:
    assert ORDERS[2].fits(torch.randn(8, 16).bfloat16())
    assert not ORDERS[2].fits((large * torch.randn(8, 16)).bfloat16())


@pytest.mark.parametrize("dim", [0, 1])
def test_one_row_or_column_too_small_for_fp16_is_reason_enough(dim: int) -> None:
    weight = torch.randn(8, 16).bfloat16()
    weight.select(dim, 3).mul_(1e-8)
    assert not ORDERS[2].fits(weight)
    weight.select(dim, 3).zero_()
    assert ORDERS[2].fits(weight)


def test_copies_are_counted_while_another_thread_makes_one() -> None:
    kept, order = Copies(), ORDERS[0]
    first, second = maps_of(torch.float32, 24), maps_of(torch.float32, 24)

    class Counted:
        @property
        def bytes(self) -> int:
            kept._kept[second[0][0]] = Copy(second, order)  # as the other thread would
            return 0

    kept._kept[first[0][0]] = Counted()
    assert kept.has_room(first)


def test_weights_whose_changes_nobody_counts_have_no_copy(copying: Copies) -> None:
    with torch.inference_mode():
        maps, x = maps_of(torch.float32, 24), torch.randn(3, 16)
        linear = Skinny(*maps)
        for _ in range(PATIENCE + 1):
            linear(x)
        maps[0][0].mul_(2)
        assert_close(linear(x).double(), together(maps, x), rtol=1e-5, atol=1e-5)
