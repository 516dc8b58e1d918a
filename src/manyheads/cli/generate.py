"""``manyheads generate``: what a trained model, or a known one, writes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Literal

from manyheads.cli.console import say
from manyheads.errors import OptionError

# Lines that are written at once.
TOGETHER = 256


def generate(
    *texts: str,
    model: Literal["smollm2"] | None = None,
    max_new_tokens: int = 256,
    no_cache: bool = False,
) -> None:
    """Write the answer of a trained model, or of SmolLM2, to each text.

    Args:
        texts: The folder of a training run, then what to answer; with --model what to answer alone.
            Without any, the lines of stdin.
        model: A model to ask in English, instead of a training run. Its answer is streamed, and
            followed by its speed and what its cache took.
        max_new_tokens: The longest answer of a --model, in tokens.
        no_cache: Let a training run compute all keys and values anew at each step: slower, and
            writes the same.
    """
    if model is None:
        if not texts:
            raise OptionError(
                "generate must have the folder of a training run, or a --model; got neither. Try: "
                'manyheads generate --model smollm2 "What is attention?"'
            )
        _of_run(Path(texts[0]), _given(texts[1:]), cached=not no_cache)
    else:
        _of_smollm2(_given(texts), max_new_tokens)


def _of_run(run: Path, lines: Sequence[str], *, cached: bool) -> None:
    from manyheads.training import load

    trained = load(run)
    for start in range(0, len(lines), TOGETHER):
        for answer in trained.write(lines[start : start + TOGETHER], cached=cached):
            say(answer)


def _of_smollm2(questions: Sequence[str], max_new_tokens: int) -> None:
    from manyheads.interop.smollm2 import SmolLM2

    smollm2 = SmolLM2.load()
    for question in questions:
        caches, count, began = smollm2.decoder.new_caches(), 0, perf_counter()
        for step in smollm2.answer(question, max_new_tokens=max_new_tokens, cache=caches):
            print(*(step.text or ()), end="", flush=True)
            count += 1
        seconds = perf_counter() - began
        size = sum(cache.memory_bytes() for cache in caches)
        say(
            f"\n[{count} tokens in {seconds:.1f} s, prompt included: {count / seconds:.1f} a "
            f"second; {caches[0].length} tokens in the cache take {size / 2**20:.1f} MiB]"
        )


def _given(texts: Sequence[str]) -> list[str]:
    lines = list(texts) or _from_stdin()
    if not all(lines):
        raise OptionError("texts must hold at least one character each; got ''. Leave it out.")
    if not all(line.encode(errors="ignore").decode() == line for line in lines):
        raise OptionError("texts must be UTF-8; got bytes that are not. Convert them first.")
    return lines


def _from_stdin() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError(
            "generate must have a text to answer; got none. Add texts behind the folder or the "
            "model, or send lines to stdin."
        )
    return [line for line in sys.stdin.read().splitlines() if line]
