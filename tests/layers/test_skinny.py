import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from manyheads.layers import skinny
from manyheads.layers.skinny import Skinny, fastest, ways


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


def of_time(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[skinny.Way]:
    """Ways of which each takes so long by a clock of our own."""
    clock = [0.0]

    def way(length: float) -> skinny.Way:
        def compute(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            clock[0] += length
            return F.linear(x, weight, bias)

        return compute

    monkeypatch.setattr(skinny.time, "perf_counter", lambda: clock[0])
    return [way(length) for length in seconds]


def test_the_fastest_is_taken_if_it_surely_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(1, 2), torch.randn(3, 2)
    slow, fast, ties = of_time(monkeypatch, 1.0, 0.5, 0.95)
    assert fastest([slow, ties, fast], x, weight, None) is fast
    assert fastest([slow, ties], x, weight, None) is slow


def test_a_shape_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(skinny, "_WAYS", {})
    monkeypatch.setattr(skinny, "fastest", lambda ways, x, *_: measured.append(len(x)) or ways[0])
    for rows in (1, 1, 5, 7, 8, 9):
        Skinny(torch.randn(4, 3))(torch.randn(rows, 3))
    assert measured == [1, 5, 9]
    Skinny(torch.randn(3, 4))(torch.randn(1, 4))
    assert measured == [1, 5, 9, 1]


def test_a_change_of_the_weight_in_place_is_seen() -> None:
    weight, x = torch.randn(4, 3), torch.randn(2, 3)
    linear = Skinny(weight)
    linear(x)
    weight.mul_(2)
    assert_close(linear(x), F.linear(x, weight))
