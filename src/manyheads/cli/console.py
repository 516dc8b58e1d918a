"""What commands print, in colour on a terminal and plain in a pipe."""

import sys

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
    # Made anew each time, because stdout may be another than when this module was loaded.
    return Console(
        file=sys.stdout,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if sys.stdout.isatty() else WIDE,
    )
