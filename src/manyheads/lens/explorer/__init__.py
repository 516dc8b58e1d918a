"""The explorer in a browser: plain ES modules and a style, joined into one text."""

import re
from importlib.resources import files
from typing import Literal

# Each imports only from those before it, so that joined they need no import.
MODULES = (
    "parts", "colour", "data", "map", "tokens", "overview", "panel", "frame", "address", "keyboard",
    "asking", "explorer",
)  # fmt: skip


def read(name: str) -> str:
    """The text of a file that lies beside this one."""
    return (files(__name__) / name).read_text("utf-8")


def script(host: Literal["page", "widget"]) -> str:
    """One ES module that runs in a page of its own, or that anywidget runs in a notebook.

    Example:
        >>> "import " in script("page"), "export default" in script("widget")
        (False, True)
    """
    text = "\n".join(read(f"{name}.js") for name in (*MODULES, host))
    return re.sub(r"^import .*\n|^export (?!default)", "", text, flags=re.MULTILINE)
