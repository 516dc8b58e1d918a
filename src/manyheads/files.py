"""Files that are whole or not there, whenever the process dies."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import get_native_id

from manyheads.errors import OptionError

PAGES = (".html", ".htm")


def check_path(path: str | os.PathLike[str], *, example: str, endings: Sequence[str] = ()) -> Path:
    """A path that a file can be written to; any other is refused before any work is done.

    Args:
        path: The path.
        example: The name of such a file, for who gives a wrong one.
        endings: What it may end in, such as ".png"; none = anything.

    Raises:
        OptionError: If it is none, ends otherwise, its folder is missing or closed, or it is a
            folder.

    Example:
        >>> check_path("heads.html", example="a.html", endings=PAGES).name
        'heads.html'
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(
            f"path must be a text or a Path; got path={type(path).__name__}. Write {example}, for "
            f"one."
        )
    target = Path(path)
    if endings and target.suffix.lower() not in endings:
        raise OptionError(
            f"path must end in one of {', '.join(endings)}; got path={str(target)!r}. Write "
            f"{example}, for one."
        )
    if not target.parent.is_dir():
        raise OptionError(
            f"path must lie in a folder that exists; got path={str(target)!r}. Make "
            f"{str(target.parent)!r} first."
        )
    place = _place(target)
    if place.is_dir() or not os.access(place if _is_stream(place) else place.parent, os.W_OK):
        raise OptionError(
            f"path must be one that a file can be written to; got path={str(target)!r}. Write "
            f"{example}, for one, in a folder of your own."
        )
    return target


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then move it there in one step.

    A run killed at any moment leaves the earlier file, or the new one, and never half of either.
    What is no file, such as a terminal or a pipe, is written to as it stands.

    Args:
        path: Where the file shall stand; its folder is made.
        write: Writes the file at the path it is given, which ends as the other.
    """
    place = _place(path)
    if _is_stream(place):
        write(place)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    # Two that write at once, threads or processes, each have a name of their own.
    unfinished = place.with_name(f".{place.stem}.{get_native_id()}{place.suffix}")
    try:
        unfinished.touch()
        rights = unfinished.stat().st_mode
        write(unfinished)
        unfinished.chmod(rights)  # safetensors gives them to the owner alone, whatever the umask
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())  # the bytes before the name: a power cut leaves no empty file
        os.replace(unfinished, place)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all.

    Args:
        path: Where the file shall stand; its folder is made.
        text: Its lines end as they are; half a character, as a shell hands on what is no text, is
            spelled as JSON does.
    """
    data = text.encode(errors="backslashreplace")
    write_whole(path, lambda file: file.write_bytes(data))


def _place(path: Path) -> Path:
    """Where a path leads, so that a link stays one."""
    return Path(os.path.realpath(path))


def _is_stream(place: Path) -> bool:
    return place.exists() and not place.is_file() and not place.is_dir()
