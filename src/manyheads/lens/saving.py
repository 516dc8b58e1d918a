"""Pages on disk: a path that can hold one, and a file that is there as a whole or not at all."""

import os
from pathlib import Path

from manyheads.errors import OptionError
from manyheads.lens.checks import as_path


def page_path(path: str | os.PathLike[str], example: str) -> Path:
    """A path that a page can be written to.

    Args:
        path: The path.
        example: The name of a page, for who gives a wrong one.

    Raises:
        OptionError: If it is none.
    """
    target = as_path(path)
    if target.suffix.lower() not in (".html", ".htm") or not target.parent.is_dir():
        raise OptionError(
            f"path must end in .html and lie in a folder that exists; got path={str(target)!r}. "
            f"Write {example}, for one."
        )
    return target


def save_page(target: Path, page: str) -> Path:
    """Write a page, or leave what was there."""
    half_written = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        half_written.write_text(page, encoding="utf-8")
        half_written.replace(target)
    finally:
        half_written.unlink(missing_ok=True)
    return target
