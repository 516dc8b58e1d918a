"""How a command ends that did not succeed: one line on stderr and an exit code."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from manyheads.errors import MaskWarning, ProbeWarning

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def complain(message: str) -> None:
    """Say in one line on stderr what is wrong and what to do.

    Args:
        message: Any text; its lines are joined.
    """
    print("manyheads:", " ".join(message.split()), file=sys.stderr)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Our own warnings, while this lasts, are lines of a command: without our file and its code."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, MaskWarning | ProbeWarning):
            return f"manyheads: {' '.join(str(message).split())}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = usual
