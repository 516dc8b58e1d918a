"""How a token is chosen: by hand, beside another library's filters, and in the long run."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from manyheads import Sampling
from manyheads.errors import OptionError

FIVE = torch.tensor([[0.1, 0.4, 0.2, 0.05, 0.25]], dtype=torch.float64).log()


def shares(**options: float) -> list[float]:
    return Sampling(**{"temperature": 1.0, **options}).weights(FIVE)[0].tolist()  # type: ignore[arg-type]


def near(*numbers: float) -> list[object]:
    return [pytest.approx(number, abs=1e-12) for number in numbers]


def test_each_filter_keeps_what_its_name_says() -> None:
    assert shares() == near(0.1, 0.4, 0.2, 0.05, 0.25)
    assert shares(temperature=0.5) == near(*(x * x / 0.275 for x in (0.1, 0.4, 0.2, 0.05, 0.25)))
    assert shares(top_k=2) == near(0, 0.4 / 0.65, 0, 0, 0.25 / 0.65)
    assert shares(top_k=9) == shares()
    assert shares(top_p=0.6) == near(0, 0.4 / 0.65, 0, 0, 0.25 / 0.65)
    assert shares(top_p=0.66) == near(0, 0.4 / 0.85, 0.2 / 0.85, 0, 0.25 / 0.85)
    assert shares(top_p=0.0) == shares(top_k=1) == near(0, 1, 0, 0, 0)
    assert shares(min_p=0.49) == near(0, 0.4 / 0.85, 0.2 / 0.85, 0, 0.25 / 0.85)
    assert shares(min_p=1.0) == near(0, 1, 0, 0, 0)
    assert shares(min_p=0.0) == shares(top_p=1.0) == shares()


def test_top_p_counts_among_what_top_k_left_and_min_p_asks_the_likeliest() -> None:
    # Of 0.4, 0.25, 0.2 the first two are 0.76 of the whole; without top-k they would be 0.65.
    assert shares(top_k=3, top_p=0.7) == near(0, 0.4 / 0.65, 0, 0, 0.25 / 0.65)
    assert shares(top_p=0.7, min_p=0.6) == near(0, 0.4 / 0.65, 0, 0, 0.25 / 0.65)


def test_a_filter_keeps_all_that_tie_with_its_last() -> None:
    tied = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0]])
    for sampling in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5)):
        assert sampling.weights(tied)[0].gt(0).tolist() == [False, True, True, True, True]
    assert Sampling().pick(torch.tensor([[1.0, 7.0, 7.0]])).tolist() == [1]
    assert Sampling().weights(torch.tensor([[1.0, 7.0, 7.0]])).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.3, top_k=1),
        Sampling(2.0, top_p=0.9),
        Sampling(1.0, min_p=0.1),
        Sampling(1.0, repetition_penalty=1.5),
    ],
)
def test_what_cannot_be_is_never_drawn(sampling: Sampling) -> None:
    logits = torch.tensor([[-torch.inf, 0.5, -torch.inf, 0.5], [-torch.inf] * 3 + [-1e9]])
    weights = sampling.weights(logits, torch.ones(2, 4).bool())
    assert weights.tolist() == [[0, 0.5, 0, 0.5], [0, 0, 0, 1]]
    infinite = torch.tensor([[torch.inf, 1.0, torch.inf]])
    assert sampling.weights(infinite).tolist() == [[0.5, 0, 0.5]]


def test_no_temperature_is_too_small_or_too_large() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.99]]).half()
    assert Sampling(1e-300).weights(logits.double()).tolist() == [[0, 1, 0]]
    assert Sampling(5e-324).weights(FIVE).tolist() == [[0, 1, 0, 0, 0]]
    assert_close(Sampling(1e300).weights(logits), torch.full((1, 3), 1 / 3).double())
    assert Sampling(1.0).weights(logits).dtype == torch.float64


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.8},
        {"temperature": 2.0, "min_p": 0.2},
        {"temperature": 1.0, "repetition_penalty": 1.3},
        {"temperature": 0.9, "top_k": 9, "top_p": 0.7, "min_p": 0.1, "repetition_penalty": 2.0},
    ],
    ids=lambda options: "+".join(options),
)
def test_the_shares_are_those_of_transformers(options: dict[str, float], seed: int) -> None:
    torch.manual_seed(seed)
    logits, ids = torch.randn(3, 20).double() * 2, torch.randint(0, 20, (3, 6))
    seen = torch.zeros(3, 20, dtype=torch.bool).scatter(1, ids, True)
    theirs = logits
    for name, warper in (  # in the order in which their `generate` applies them
        ("repetition_penalty", RepetitionPenaltyLogitsProcessor),
        ("temperature", TemperatureLogitsWarper),
        ("top_k", TopKLogitsWarper),
        ("top_p", TopPLogitsWarper),
        ("min_p", MinPLogitsWarper),
    ):
        if name in options:
            theirs = warper(options[name])(ids, theirs)
    ours = Sampling(**options).weights(logits, seen)  # type: ignore[arg-type]
    assert_close(ours, theirs.softmax(-1), rtol=1e-10, atol=1e-12)


def chi_square(counts: Tensor, expected: Tensor) -> float:
    there = expected > 0
    assert counts[~there].sum() == 0
    return float(((counts - expected)[there] ** 2 / expected[there]).sum())


def test_draws_follow_the_shares() -> None:
    sampling, draws = Sampling(0.8, top_k=4), 40_000
    tokens = sampling.pick(FIVE.expand(draws, -1), draws=torch.Generator().manual_seed(1))
    counts = tokens.bincount(minlength=5).double()
    # Three degrees of freedom: above 16.3 one time in a thousand.
    assert chi_square(counts, draws * sampling.weights(FIVE)[0]) < 16.3


def test_a_row_with_its_own_generator_draws_as_if_alone() -> None:
    logits, sampling = torch.randn(3, 50), Sampling(1.0)

    def own() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in (5, 6, 7)]

    together = sampling.pick(logits, draws=own())
    alone = [sampling.pick(logits[i : i + 1], draws=[draw]) for i, draw in enumerate(own())]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature must be a finite number of at least 0; got"),
        ({"temperature": math.inf}, "temperature must be a finite number of at least 0; got"),
        ({"temperature": True}, "temperature must be a finite number of at least 0; got"),
        ({"top_k": 0}, "top_k must be an int of at least 1; got top_k=0"),
        ({"top_p": 1.1}, "top_p must be a number from 0 to 1; got top_p=1.1"),
        ({"top_p": math.nan}, "top_p must be a number from 0 to 1; got top_p=nan"),
        ({"min_p": -0.1}, "min_p must be a number from 0 to 1; got min_p=-0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a finite number above 0; got"),
    ],
)
def test_a_number_out_of_range_is_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-torch.inf, torch.nan])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "drawn"])
def test_a_row_without_a_possible_token_is_refused(sampling: Sampling, wrong: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [wrong, wrong]])
    with pytest.raises(OptionError, match="logits must leave each row a possible token"):
        sampling.pick(logits)
