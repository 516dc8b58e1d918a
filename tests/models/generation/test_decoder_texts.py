"""Our own decoder writes: in the manner of GPT-2, of Llama, and with a window."""

import functools
from typing import Any

import pytest
import torch
from tests.models.generation.models import EXACT

import manyheads as mh
from manyheads.errors import OptionError

SMALL: dict[str, Any] = {
    "vocab_size": 23, "d_model": 16, "num_heads": 4, "num_layers": 2, "d_hidden": 32,
}  # fmt: skip
MANNERS: dict[str, dict[str, Any]] = {
    "gpt-2": {
        "norm": "layer", "activation": "gelu_tanh", "bias": True, "positions": "learned",
        "max_length": 32,
    },
    "llama": {"num_kv_heads": 2},
    "window": {"num_kv_heads": 1, "window": 5},
}  # fmt: skip
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]
LENGTH = 16


def decoder(manner: str, seed: int = 0, **changes: Any) -> mh.Decoder:
    torch.manual_seed(seed)
    model = mh.Decoder(mh.DecoderConfig(**{**SMALL, **MANNERS[manner], **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    return model.eval()


def greedy(model: mh.Decoder, prompt: list[int], length: int) -> list[int]:
    text = list(prompt)
    for _ in range(length):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


@functools.cache
def written_by(manner: str) -> list[list[int]]:
    model = decoder(manner)
    return [greedy(model, prompt, LENGTH) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", [*EXACT, "none"])
@pytest.mark.parametrize("manner", MANNERS)
def test_greedy_text_is_the_same_with_every_cache(manner: str, kind: str) -> None:
    model, right = decoder(manner), written_by(manner)
    assert len({*map(tuple, right)}) == 3
    options: dict[str, Any] = {"max_new_tokens": LENGTH, "cache": EXACT.get(kind)}
    assert mh.generate(model, PROMPTS, **options).tolist() == right
    draft = mh.Draft(decoder(manner, seed=1, num_layers=1), 3, EXACT.get(kind))
    assert mh.generate(model, PROMPTS, **options, draft=draft).tolist() == right
    one = mh.beam_search(model, PROMPTS, **options, beams=1)
    assert one.tokens[:, 0].tolist() == right


def test_a_window_needs_no_more_than_its_ring() -> None:
    model = decoder("window")
    right = [greedy(model, prompt, 25) for prompt in PROMPTS]
    caches = model.new_caches(lambda: mh.RingCache(5))
    assert mh.generate(model, PROMPTS, max_new_tokens=25, cache=caches).tolist() == right
    assert all(cache.length <= 5 for cache in caches)


def test_beams_are_the_same_with_every_cache() -> None:
    model = decoder("llama")
    options: dict[str, Any] = {"max_new_tokens": 8, "best": 3, "stop": mh.Stop(tokens=(0, 1))}
    right = mh.beam_search(model, PROMPTS, **options, cache=None)
    for kind in EXACT.values():
        found = mh.beam_search(model, PROMPTS, **options, cache=kind)
        assert torch.equal(found.tokens, right.tokens)
        torch.testing.assert_close(found.scores, right.scores)


def test_learned_positions_are_an_end() -> None:
    model = decoder("gpt-2")
    assert mh.generate(model, [[1] * 30], max_new_tokens=3).shape == (1, 3)
    with pytest.raises(OptionError, match="a text must fit the model's max_length=32; got 33"):
        mh.generate(model, [[1] * 30], max_new_tokens=4)


def test_a_prompt_costs_the_logits_of_its_last_token_alone() -> None:
    model = decoder("llama")
    assert model.output is not None
    seen: list[int] = []
    model.output.register_forward_hook(lambda module, inputs, out: seen.append(out.shape[1]))
    mh.generate(model, PROMPTS, max_new_tokens=3)
    assert seen == [1, 1, 1]
