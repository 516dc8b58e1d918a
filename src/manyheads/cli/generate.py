"""``manyheads generate``: what a trained model writes."""

import sys
from pathlib import Path

from manyheads.cli.console import say
from manyheads.errors import OptionError
from manyheads.training import load

# Lines that are written at once.
TOGETHER = 256


def generate(run: Path, /, *texts: str, no_cache: bool = False) -> None:
    """Write the model's answer to each text, a line each.

    Args:
        run: The folder of a training run.
        texts: What to answer; without any, the lines of stdin.
        no_cache: Compute all keys and values anew at each step: slower, and writes the same.
    """
    lines = list(texts) or _from_stdin()
    if not all(lines):
        raise OptionError("texts must hold at least one character each; got ''. Leave it out.")
    trained = load(run)
    for start in range(0, len(lines), TOGETHER):
        for answer in trained.write(lines[start : start + TOGETHER], cached=not no_cache):
            say(answer)


def _from_stdin() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError(
            "generate must have a text to answer; got none. Add texts behind the folder, or send "
            "lines to stdin."
        )
    return [line for line in sys.stdin.read().splitlines() if line]
