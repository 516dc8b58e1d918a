"""Text that grows step by step is the text of one pass, whatever keeps its keys and values."""

from typing import Any

import pytest
import torch
from tests.models.generation.models import EXACT, Words, greedy

import manyheads as mh
from manyheads.errors import CacheError, DTypeError, OptionError, ShapeError

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]


@pytest.mark.parametrize("kind", EXACT)
def test_every_cache_writes_what_none_writes(kind: str) -> None:
    model = Words()
    text = mh.generate(model, PROMPTS, max_new_tokens=12, cache=EXACT[kind])
    assert text.tolist() == [greedy(model, prompt, 12) for prompt in PROMPTS]
    assert model.read[0] == 5 and set(model.read[1:12]) == {1}


def test_without_a_cache_all_is_read_anew() -> None:
    model = Words()
    text = mh.generate(model, PROMPTS, max_new_tokens=6, cache=None)
    assert model.read == [5, 6, 7, 8, 9, 10]
    assert text.tolist() == [greedy(model, prompt, 6) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", EXACT)
def test_a_text_goes_on_from_caches_that_hold_the_last(kind: str) -> None:
    model = Words()
    caches = model.new_caches(EXACT[kind])
    first = mh.generate(model, PROMPTS, max_new_tokens=4, cache=caches)
    # What was written last was never read: it leads the next prompt.
    more = [[*row[-1:].tolist(), 7, 8] for row in first]
    second = mh.generate(model, more, max_new_tokens=5, cache=caches)
    for row, prompt in enumerate(PROMPTS):
        whole = [*prompt, *first[row, :-1].tolist(), *more[row]]
        assert second[row].tolist() == greedy(model, whole, 5)
    ragged = [
        [*row[-1:].tolist(), *more] for row, more in zip(second, ([], [1], [2, 3]), strict=True)
    ]
    third = mh.generate(model, ragged, max_new_tokens=3, cache=caches)
    for row, prompt in enumerate(PROMPTS):
        whole = [*prompt, *first[row, :-1].tolist(), *more[row], *second[row, :-1].tolist()]
        assert third[row].tolist() == greedy(model, [*whole, *ragged[row]], 3)


def test_a_window_of_a_ring_is_enough_for_a_model_with_that_window() -> None:
    model = Words(mask=mh.Causal() & mh.Window(4))
    text = mh.generate(model, PROMPTS, max_new_tokens=20, cache=lambda: mh.RingCache(4))
    assert text.tolist() == [greedy(model, prompt, 20) for prompt in PROMPTS]


def test_rounded_keys_change_little() -> None:
    model = Words(seed=1)
    text = mh.generate(
        model,
        [PROMPTS[0]],
        max_new_tokens=40,
        cache=lambda: mh.QuantizedCache(8, recent=4, group=4),
    )[0]
    same = sum(a == b for a, b in zip(text.tolist(), greedy(model, PROMPTS[0], 40), strict=True))
    assert same >= 20


@pytest.mark.parametrize("draws", ["one for each row", "one"])
def test_drawn_text_repeats_with_its_seed(draws: str) -> None:
    model, sampling = Words(), mh.Sampling(1.2, top_k=8, repetition_penalty=1.2)

    def seeded(seeds: list[int]) -> Any:
        own = [torch.Generator().manual_seed(seed) for seed in seeds]
        return own if draws == "one for each row" else own[0]

    def write(prompts: list[list[int]], seeds: list[int]) -> list[list[int]]:
        return mh.generate(
            model, prompts, max_new_tokens=9, sampling=sampling, generator=seeded(seeds)
        ).tolist()

    before = torch.get_rng_state()
    together = write(PROMPTS, [1, 2, 3])
    assert together == write(PROMPTS, [1, 2, 3]) != write(PROMPTS, [4, 5, 6])
    if draws == "one for each row":
        for row, prompt in enumerate(PROMPTS):
            assert write([prompt], [row + 1]) == [together[row]]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_penalty_counts_the_prompt_and_what_was_written() -> None:
    model = Words(sharp=0.01)  # all tokens are nearly as likely as one another
    penalised = mh.Sampling(repetition_penalty=1e6)
    with torch.no_grad():
        model.output.weight.abs_()
    text = mh.generate(model, PROMPTS, max_new_tokens=10, sampling=penalised).tolist()
    for prompt, row in zip(PROMPTS, text, strict=True):
        logits = model(torch.tensor([[*prompt, *row]]))[0]
        assert len(set(row)) == len(row) or logits.min() < 0
        for index, token in enumerate(row):
            last = logits[len(prompt) - 1 + index].clone()
            held = list({*prompt, *row[:index]})
            last[held] = torch.where(last[held] > 0, last[held] / 1e6, last[held] * 1e6)
            assert token == int(last.argmax())


def test_a_step_is_made_when_it_is_asked_for() -> None:
    model = Words()
    steps = mh.stream(model, PROMPTS, max_new_tokens=5)
    assert model.read == []
    seen = []
    for count, step in enumerate(steps, 1):
        assert len(model.read) == count
        seen.append(step.tokens)
    whole = mh.generate(model, PROMPTS, max_new_tokens=5)
    assert torch.equal(torch.stack(seen, 1), whole)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_closing_early_leaves_the_mode_and_gradients_as_they_were(steps: int) -> None:
    model = Words().train()
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    iterator = mh.stream(model, PROMPTS, max_new_tokens=9)
    for _ in range(steps):
        next(iterator)
        assert [module.training for module in model.modules()] == modes
        assert torch.is_grad_enabled()
    iterator.close()  # type: ignore[attr-defined]
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_model_that_fails_is_left_in_its_mode() -> None:
    model = Words().train()
    model.output.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mh.generate(model, PROMPTS, max_new_tokens=2)
    assert all(module.training for module in model.modules())


def test_a_text_may_have_no_length_and_no_rows() -> None:
    assert mh.generate(Words(), PROMPTS, max_new_tokens=0).shape == (3, 0)
    assert mh.generate(Words(), [], max_new_tokens=3).shape == (0, 0)
    assert mh.generate(Words(), torch.zeros(0, 4).long(), max_new_tokens=3).shape == (0, 0)


@pytest.mark.parametrize(
    ("tokens", "options", "error", "message"),
    [
        ([[1], []], {}, ShapeError, "a prompt must hold at least one token; got an empty one"),
        (torch.zeros(2, 0).long(), {}, ShapeError, "a prompt must hold at least one token"),
        (torch.zeros(2).long(), {}, ShapeError, r"tokens must be \(batch, length\); got shape"),
        ([[1, 17]], {}, OptionError, "tokens must hold token ids from 0 to 16; got 1 to 17"),
        (PROMPTS, {"max_new_tokens": -1}, OptionError, "max_new_tokens must be an int of at least"),
        (PROMPTS, {"min_new_tokens": 9}, OptionError, "min_new_tokens must be at most max_new_tok"),
        (PROMPTS, {"generator": []}, OptionError, "generator must be one, or one for each of 3"),
        ("once", {}, DTypeError, "tokens must be token ids.*got tokens='once'. Encode"),
        (["once"], {}, DTypeError, "tokens must be rows of token ids; got a row 'once'"),
        (PROMPTS, {"generator": 5}, OptionError, "generator must be one, or.*got 5. A row"),
        (PROMPTS, {"generator": [1, 2, 3]}, OptionError, r"generator must.*got \[1, 2, 3\]"),
        (PROMPTS, {"sampling": 0.8}, OptionError, r"sampling must be a Sampling\(...\); got samp"),
        (PROMPTS, {"stop": "END"}, OptionError, r"stop must be a Stop\(...\); got stop='END'"),
        (PROMPTS, {"draft": Words()}, OptionError, r"draft must be a Draft\(...\); got draft=Wor"),
        (PROMPTS, {"cache": mh.GrowingCache()}, CacheError, "cache must be a kind of cache, or a"),
        (PROMPTS, {"cache": [None, None]}, CacheError, "cache must be a kind of cache.*NoneType"),
        (PROMPTS, {"cache": []}, CacheError, "caches must be one for each of 2 layers; got 0"),
        (
            PROMPTS,
            {"stop": mh.Stop((17,))},
            OptionError,
            "stop tokens must be ids from 0 to 16; got",
        ),
        ([[1] * 9], {}, OptionError, "a text must fit the model's max_length=10; got 11 tokens"),
        (PROMPTS, {"cache": lambda: mh.FixedCache(6)}, OptionError, "must fit the cache's room=6"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    tokens: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = Words(max_length=10)
    with pytest.raises(error, match=message):
        mh.stream(model, tokens, **{"max_new_tokens": 3, **options})
    assert model.read == []


def test_a_refusal_leaves_caches_unchanged() -> None:
    model = Words(max_length=10)
    caches = model.new_caches()
    mh.generate(model, PROMPTS, max_new_tokens=4, cache=caches)
    held = [cache.read() for cache in caches]
    for tokens in ([[1, 1, 1]] * 3, [[1]] * 2, [[1], [], [1]], [[99]] * 3):
        with pytest.raises((OptionError, CacheError, ShapeError)):
            mh.generate(model, tokens, max_new_tokens=2, cache=caches)
    for cache, before in zip(caches, held, strict=True):
        assert torch.equal(cache.read().k, before.k)
        assert cache.length == before.length


def test_a_text_may_be_as_long_as_the_model_and_the_room() -> None:
    model = Words(max_length=10)
    room = {"cache": lambda: mh.FixedCache(10)}
    assert mh.generate(model, [[1] * 8], max_new_tokens=3, **room).shape == (1, 3)


def test_what_is_no_model_of_text_is_refused() -> None:
    with pytest.raises(OptionError, match="model must be a Transformer or a model of text; got"):
        mh.generate(torch.nn.Linear(2, 2), PROMPTS, max_new_tokens=2)
