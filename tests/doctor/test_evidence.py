"""The numbers that findings tell are those that were measured; what cannot be measured is told."""

import pytest
import torch
import torch.nn.functional as F
from tests.museum.exhibit import HEADS, UNKNOWN, WIDTH, ids, stream
from tests.museum.masks import KEEP, REAL, style
from tests.museum.places import Emptied, TurnedTwice, narrow, paired
from tests.museum.styles import Fused, Matmul, Waves, Writer
from torch import Tensor, nn

from manyheads.doctor import Facts, Finding, examine


class Times(nn.Module):
    """Attention whose weights are multiplied behind a softmax over some axis."""

    def __init__(self, factor: float = 1.0, dim: int = -1) -> None:
        super().__init__()
        self.factor, self.dim = factor, dim
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        weights = F.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=self.dim)
        return (self.factor * weights @ v).transpose(1, 2).flatten(2)


def only(model: nn.Module, *args: Tensor, facts: Facts = UNKNOWN, **kwargs: Tensor) -> Finding:
    (finding,) = examine(model, *args, facts=facts, **kwargs).findings
    return finding


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_sum_of_weights_is_told(factor: float) -> None:
    found = only(Times(factor), stream())
    assert (found.code, found.number) == ("weights_not_one", pytest.approx(factor))


@pytest.mark.parametrize(("dim", "axis"), [(-2, -2), (1, -3), (2, -2)])
def test_the_axis_of_a_softmax_is_told(dim: int, axis: int) -> None:
    found = only(Times(dim=dim), stream())
    assert found.code == "softmax_axis"
    assert found.where == f"Times, softmax over dim {axis}"


def test_weights_that_are_right_have_no_finding() -> None:
    report = examine(Times(), stream())
    assert report.findings == ()
    assert report.verdict("weights_not_one").says == "pass"


def test_the_place_at_which_positions_are_given_again_is_told() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Waves(), Waves()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    found = only(Writer(Fused(True), place=Again()), ids(), facts=Facts(causal=True))
    assert (found.code, found.where, found.number) == ("position_twice", "place.second", 2)


def test_rotary_turned_twice_is_told_once() -> None:
    assert only(style(Matmul, TurnedTwice)(), stream()).code == "position_twice"


def test_an_amount_of_padding_that_matters_is_told_with_its_place() -> None:
    torch.manual_seed(0)
    found = only(style(Matmul, Emptied)(), stream(), padding_mask=KEEP, facts=REAL)
    assert (found.code, found.where) == ("padding_leak", "rows padded from 9 on")
    assert "with 2 places of padding behind them" in found.unit


def test_narrow_heads_are_counted() -> None:
    exhibit = narrow(67)
    found = only(exhibit.build(), *exhibit.args)
    assert (found.code, found.severity, found.number) == ("head_dim_small", "note", 2)
    assert found.unit == "features must tell 67 keys apart, in 12 heads"
    assert found.expected == "7 or more"


def test_heads_that_come_in_two_kinds_are_counted_as_two() -> None:
    found = only(paired(Matmul)(), stream())
    assert (found.code, found.severity) == ("too_many_heads", "note")
    assert found.number == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("position_twice", "nothing that is made of places alone was added to a stream"),
        ("weights_not_one", "no softmax over keys was seen inside, and no weights are handed"),
        ("rope_pairs_mixed", "nobody said which other model of the same weights is right"),
        ("head_dim_small", "no attention was seen inside"),
        ("too_many_heads", "no attention was seen inside"),
    ],
)
def test_what_cannot_be_told_of_a_model_without_attention_is_told_why(
    code: str, reason: str
) -> None:
    verdict = examine(nn.Sequential(nn.Linear(8, 8)), torch.randn(2, 9, 8)).verdict(code)
    assert verdict.says == "cannot tell" and reason in verdict.reason
