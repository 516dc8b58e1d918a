"""How a command ends that did not succeed: one line on stderr and an exit code."""

import sys

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def complain(message: str) -> None:
    """Say in one line on stderr what is wrong and what to do.

    Args:
        message: Any text; its lines are joined.
    """
    print("manyheads:", " ".join(message.split()), file=sys.stderr)
