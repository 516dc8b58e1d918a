"""Beams find the best texts: all of them if wide enough, and each cache follows."""

import functools
import math
from typing import Any

import pytest
import torch
from tests.models.generation.models import EXACT, Words, greedy
from tests.models.generation.test_transformer_texts import lively
from tests.models.test_transformer import SOURCE
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import OptionError

PROMPTS = [[1, 2, 3], [0], [2, 2]]


def likelihood(model: Words, prompt: list[int], text: list[int]) -> float:
    logits = model(torch.tensor([[*prompt, *text]]))[0].log_softmax(-1)
    return sum(float(logits[len(prompt) - 1 + i, token]) for i, token in enumerate(text))


def every_text(model: Words, prompt: list[int], most: int, end: int, power: float) -> Any:
    """All texts up to a length with their scores, the best first."""
    found = []
    for length in range(1, most + 1):
        texts = torch.cartesian_prod(*[torch.arange(model.config.vocab_size)] * length)
        texts = texts.view(-1, length)
        whole = torch.cat((torch.tensor([prompt]).expand(len(texts), -1), texts), dim=1)
        each = model(whole)[:, len(prompt) - 1 : -1].log_softmax(-1).gather(2, texts[:, :, None])
        for text, total in zip(texts.tolist(), each.sum((1, 2)).tolist(), strict=True):
            if end not in text[:-1] and (length == most or text[-1] == end):
                found.append((total / length**power, text))
    return sorted(found, reverse=True)


@torch.no_grad()
@pytest.mark.parametrize("power", [0.0, 1.0, 2.5, -1.0])
def test_beams_wide_enough_find_the_best_texts_of_all(power: float) -> None:
    model, most, end = Words(4), 3, 3
    found = mh.beam_search(
        model, PROMPTS, max_new_tokens=most, beams=64, best=5, length_penalty=power,
        stop=mh.Stop(tokens=(end,)),
    )  # fmt: skip
    for row, prompt in enumerate(PROMPTS):
        right = every_text(model, prompt, most, end, power)[:5]
        texts = [[token for token in text if token >= 0] for text in found.tokens[row].tolist()]
        assert texts == [text for _, text in right]
        assert_close(found.scores[row], torch.tensor([x for x, _ in right]).double())


def plain_beams(model: Words, prompt: list[int], most: int, beams: int, end: int) -> list[Any]:
    """The search as its definition reads, one pass over the whole text for every step."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended = []
    for length in range(1, most + 1):
        nexts = [
            (likelihood(model, prompt, [*text, token]), [*text, token])
            for _, text in live
            for token in range(model.config.vocab_size)
        ]
        done = nexts if length == most else [x for x in nexts if x[1][-1] == end]
        keep = sorted((x for x in nexts if x[1][-1] != end), reverse=True)[:beams]
        if length == most:
            done = keep + [x for x in nexts if x[1][-1] == end]
        ended += [(total / length, text) for total, text in done]
        live = keep
    return sorted(ended, reverse=True)


@functools.cache
def three_by_definition() -> list[list[tuple[float, list[int]]]]:
    model = Words(9, seed=2, sharp=2.0)
    return [plain_beams(model, prompt, 6, 3, 0)[:3] for prompt in PROMPTS]


@torch.no_grad()
@pytest.mark.parametrize("kind", [*EXACT, "none"])
def test_a_narrow_search_is_that_of_the_definition_with_every_cache(kind: str) -> None:
    found = mh.beam_search(
        Words(9, seed=2, sharp=2.0), PROMPTS, max_new_tokens=6, beams=3, best=3,
        stop=mh.Stop(tokens=(0,)), cache=EXACT.get(kind),
    )  # fmt: skip
    for row, right in enumerate(three_by_definition()):
        texts = [[token for token in text if token >= 0] for text in found.tokens[row].tolist()]
        assert texts == [text for _, text in right]
        assert_close(found.scores[row], torch.tensor([x for x, _ in right]).double())


def test_one_beam_is_greedy() -> None:
    model = Words()
    found = mh.beam_search(model, PROMPTS, max_new_tokens=8, beams=1)
    assert found.tokens[:, 0].tolist() == [greedy(model, prompt, 8) for prompt in PROMPTS]


def test_the_search_stops_when_nothing_better_can_come() -> None:
    model = Words(6)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.weight[5] = 50 * model.layers[-1].feed_forward_residual.norm.weight[:1]
    bias = torch.tensor([0.0, 0, 0, 0, 0, 20.0]).double()
    model.output.register_forward_hook(lambda module, inputs, out: out * 0 + bias)
    stop = mh.Stop(tokens=(5,))
    found = mh.beam_search(model, PROMPTS, max_new_tokens=50, beams=3, stop=stop)
    assert len(model.read) < 5
    assert found.tokens.tolist() == [[[5]]] * 3
    free = mh.beam_search(model, PROMPTS, max_new_tokens=7, min_new_tokens=4, stop=stop)
    assert free.tokens.shape == (3, 1, 5) and free.tokens[:, 0, 4].eq(5).all()
    assert not free.tokens[:, 0, :4].eq(5).any()


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("cache", [mh.GrowingCache, mh.PagedCache, None], ids=str)
def test_an_encoder_decoder_is_searched_too(positions: str, cache: Any) -> None:
    transformer = lively(positions=positions).double()
    found = mh.beam_search(transformer, SOURCE, max_new_tokens=6, beams=3, best=2, cache=cache)
    for row, source in enumerate(SOURCE):
        for text, score in zip(found.tokens[row].tolist(), found.scores[row], strict=True):
            body = text[: text.index(2) + 1] if 2 in text else text
            assert {*text[len(body) :]} <= {0} and 0 not in body
            logits = transformer(source[None], torch.tensor([[1, *body[:-1]]]))[0]
            logits[:, 0] = -torch.inf
            each = logits.log_softmax(-1)[range(len(body)), body]
            assert float(score) == pytest.approx(float(each.mean()), abs=1e-10)


def test_fewer_texts_than_were_asked_for_are_told_by_their_scores() -> None:
    found = mh.beam_search(Words(2), [[1]], max_new_tokens=1, beams=4, best=4)
    assert found.scores[0].isfinite().tolist() == [True, True, False, False]
    assert found.tokens[0, 2:].eq(-1).all()
    assert sorted(found.tokens[0, :2, 0].tolist()) == [0, 1]
    assert math.isclose(float(found.scores[0, :2].exp().sum()), 1.0)


def test_nothing_may_be_asked_for_and_of_nobody() -> None:
    assert mh.beam_search(Words(), PROMPTS, max_new_tokens=0).tokens.shape == (3, 1, 0)
    assert mh.beam_search(Words(), [], max_new_tokens=2).tokens.shape[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be an int of at least 1; got beams=0"),
        ({"beams": 2, "best": 3}, "best must be at most beams=2; got best=3"),
        ({"length_penalty": math.nan}, "length_penalty must be a number; got length_penalty=nan"),
        (
            {"stop": mh.Stop(strings=("a",), decode=str)},
            "stop must hold tokens alone in a beam search",
        ),
        ({"min_new_tokens": 3}, "min_new_tokens must be at most max_new_tokens=2; got"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    model = Words()
    with pytest.raises(OptionError, match=message):
        mh.beam_search(model, PROMPTS, max_new_tokens=2, **options)
    assert model.read == []
