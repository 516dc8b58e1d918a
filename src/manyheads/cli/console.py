"""What commands print, in colour on a terminal and plain in a pipe."""

import sys
from io import TextIOWrapper

from rich.console import Console, RenderableType

# What a table is given where no terminal says how wide it is.
WIDE = 120


def width() -> int:
    """How many characters a line has."""
    return _console().width


def say(what: RenderableType) -> None:
    """Print on stdout. A text is printed as it is: no markup, no highlighting, no wrapping."""
    _console().print(what, soft_wrap=isinstance(what, str))


def _console() -> Console:
    if isinstance(sys.stdout, TextIOWrapper):
        # What stdout's encoding does not have is spelled, rather than the end of the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Made anew each time, because stdout may be another than when this module was loaded.
    return Console(
        file=sys.stdout,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if sys.stdout.isatty() else WIDE,
    )
