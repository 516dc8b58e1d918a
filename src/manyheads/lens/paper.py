"""What pictures are drawn on: a figure that needs no window and leaves no setting behind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.errors import MissingExtraError
from manyheads.extras import install_line
from manyheads.files import check_path, write_whole
from manyheads.lens.labels import Label

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

INK, FAINT = "#222222", "#6b6b6b"
# Dots an inch; a page of very many heads gets fewer, within what Agg can draw.
SHARPNESS, MOST_DOTS = 200, 30_000


@contextmanager
def plain_settings() -> Iterator[None]:
    """Matplotlib's own defaults for the length of a block, whatever the user has set.

    A user's ``text.usetex`` or dark style would change what a label says or how it reads.

    Raises:
        MissingExtraError: If matplotlib is not there, or too old to shape Arabic and Hindi.
    """
    try:
        import matplotlib
        from matplotlib import style
    except ImportError as error:
        raise MissingExtraError(
            f"Pictures must have matplotlib; got none. Run: {install_line('plots')}"
        ) from error
    version = tuple(int(part) for part in matplotlib.__version__.split(".")[:2])
    if version < (3, 11):
        raise MissingExtraError(
            f"Pictures must have matplotlib 3.11 or newer, the first to shape all scripts; got "
            f"{matplotlib.__version__}. Run: {install_line('plots')}"
        )
    with style.context("default"):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty page of so many inches, apart from pyplot: no window, no global list of figures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dots = min(SHARPNESS, MOST_DOTS / max(width, height))
    figure = Figure(figsize=(width, height), dpi=dots, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def write(text: "Text", label: Label) -> "Text":
    """Make a text literal: its own fonts, no math."""
    text.set_parse_math(False)
    text.set_fontfamily(label.families)
    text.set_language(label.language)
    return text


def picture_path(path: str | os.PathLike[str] | None) -> Path | None:
    """A path that a picture can be written to, or None for no path; before any work is done.

    Raises:
        OptionError: If no picture can be written there.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    if path is None:
        return None
    endings = [f".{ending}" for ending in sorted(FigureCanvasBase.get_supported_filetypes())]
    return check_path(path, example="heads.png", endings=endings)


def save(figure: "Figure", path: Path | None) -> "Figure":
    """The figure, after it was written to the path, if there is one: whole or not at all."""
    if path is not None:
        write_whole(path, figure.savefig)
    return figure
