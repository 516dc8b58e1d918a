"""A draft makes the text come sooner; its distribution stays the model's own."""

import functools
from typing import Any

import pytest
import torch
from tests.models.generation.models import EXACT, Words, greedy
from tests.models.generation.test_sampling import chi_square
from tests.models.generation.test_transformer_texts import lively
from tests.models.test_transformer import SOURCE

import manyheads as mh
from manyheads.errors import CacheError, OptionError

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]


@functools.cache
def written_by_words() -> list[list[int]]:
    return [greedy(Words(), prompt, 13) for prompt in PROMPTS]


@pytest.mark.parametrize("ahead", [1, 3, 7])
@pytest.mark.parametrize("kind", [*EXACT, "none"])
def test_greedy_text_is_the_models_own(kind: str, ahead: int) -> None:
    model, other = Words(), Words(layers=1, seed=3)
    cache = EXACT.get(kind)
    for draft in (other, Words()):  # one that is hardly ever right, one that always is
        text = mh.generate(
            model, PROMPTS, max_new_tokens=13, cache=cache, draft=mh.Draft(draft, ahead, cache)
        )
        assert text.tolist() == written_by_words()


def test_the_same_model_as_its_draft_is_always_right() -> None:
    model = Words()
    steps = list(mh.stream(model, PROMPTS, max_new_tokens=11, draft=mh.Draft(Words(), 4)))
    assert model.read == [5, 5, 5]
    assert [step.drafted for step in steps] == [False] + ([True] * 4 + [False]) * 2


SAMPLINGS = {
    "plain": mh.Sampling(1.0),
    "filtered": mh.Sampling(1.4, top_k=3, top_p=0.95),
    "penalised": mh.Sampling(1.0, repetition_penalty=3.0),
}


def distribution(
    model: Words, prompt: list[int], sampling: mh.Sampling, length: int
) -> dict[tuple[int, ...], float]:
    """The probability of every text, from passes over the whole of it."""
    vocab, found = model.config.vocab_size, {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for text, share in found.items():
            whole = [*prompt, *text]
            seen = torch.zeros(1, vocab, dtype=torch.bool)
            seen[0, whole] = True
            weights = sampling.weights(model(torch.tensor([whole]))[:, -1], seen)[0].tolist()
            longer |= {(*text, token): share * x for token, x in enumerate(weights)}
        found = longer
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", SAMPLINGS)
def test_drawn_texts_are_distributed_as_the_models_own(name: str) -> None:
    model, draft = Words(4, sharp=1.5), Words(4, layers=1, seed=5, sharp=1.5)
    sampling, prompt, rows = SAMPLINGS[name], [2, 0], 1500
    right = distribution(model, prompt, sampling, 3)
    counts = dict.fromkeys(right, 0)
    draw = torch.Generator().manual_seed(0)
    # A batch goes on together: rows that refuse cut short those that do not.
    for batch in [1] * 60 + [rows] * 4 + [3] * 60:
        texts = mh.generate(
            model, [prompt] * batch, max_new_tokens=3, sampling=sampling, generator=draw,
            draft=mh.Draft(draft, 2),
        )  # fmt: skip
        for text in texts.tolist():
            counts[tuple(text)] += 1
    total = sum(counts.values())
    expected = torch.tensor(list(right.values())).double() * total
    # 63 degrees of freedom at most: above 103.4 one time in a thousand.
    assert chi_square(torch.tensor(list(counts.values())).double(), expected) < 103.4


def test_a_draft_knows_stops_least_lengths_and_text() -> None:
    model, draft = Words(), Words(layers=1, seed=3)
    free = greedy(model, PROMPTS[0], 12)
    stop = mh.Stop(tokens=(free[6],), strings=(chr(97 + free[4]),), decode=lambda ids: "".join(
        chr(97 + i) for i in ids
    ))  # fmt: skip
    for least in (0, 6, 9):
        options: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": least, "stop": stop}
        plain = list(mh.stream(model, PROMPTS, **options))
        helped = list(mh.stream(model, PROMPTS, **options, draft=mh.Draft(draft, 3)))
        assert [step.tokens.tolist() for step in helped] == [x.tokens.tolist() for x in plain]
        assert [step.text for step in helped] == [x.text for x in plain]


def test_an_encoder_decoder_takes_a_draft() -> None:
    transformer, draft = lively(positions="rotary").double(), lively(num_decoder_layers=1).double()
    text = mh.generate(transformer, SOURCE, max_new_tokens=9, draft=mh.Draft(draft, 3))
    assert torch.equal(text, transformer.generate(SOURCE, max_new_tokens=9))


def test_caches_end_as_they_do_without_a_draft() -> None:
    model, draft = Words(), Words(layers=1, seed=3)
    for length in range(1, 10):
        caches = model.new_caches()
        text = mh.generate(
            model, [PROMPTS[0]], max_new_tokens=length, cache=caches, draft=mh.Draft(draft, 4)
        )
        assert {cache.length for cache in caches} == {5 + length - 1}
        more = mh.generate(model, text[:, -1:], max_new_tokens=3, cache=caches)
        assert more[0].tolist() == greedy(model, [*PROMPTS[0], *text[0].tolist()], 3)


def test_a_greedy_draft_draws_nothing() -> None:
    model, draft = Words(), mh.Draft(Words(layers=1, seed=3))
    before = torch.get_rng_state()
    mh.generate(model, PROMPTS, max_new_tokens=9, draft=draft)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_ring_that_cannot_go_back_so_far_says_so() -> None:
    window = mh.Causal() & mh.Window(4)
    model, draft = Words(mask=window), Words(layers=1, seed=3, mask=window)

    def write(undo: int) -> Any:
        def ring() -> mh.RingCache:
            return mh.RingCache(4, undo=undo)

        return mh.generate(
            model, [PROMPTS[0]], max_new_tokens=15, cache=ring, draft=mh.Draft(draft, 4, ring)
        )

    assert write(4)[0].tolist() == greedy(model, PROMPTS[0], 15)
    with pytest.raises(CacheError, match=r"RingCache\(4, undo="):
        write(0)


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(OptionError, match="a draft must have the model's vocab_size=17; got 5"):
        mh.generate(Words(), [[1]], max_new_tokens=2, draft=mh.Draft(Words(5)))
    with pytest.raises(OptionError, match="ahead must be an int of at least 1; got ahead=0"):
        mh.Draft(Words(), 0)
