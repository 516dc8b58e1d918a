"""What is written beside a row or column: a token, in full and visibly, in any script."""

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from manyheads.extras import install_line
from manyheads.lens.fonts import families_for, is_guide

EMPTY, BLANK, NEWLINE, TAB, CIRCLE, CUT = "∅", "␣", "↵", "⇥", "◌", "…"
_log = logging.getLogger("manyheads")


@dataclass(frozen=True)
class Label:
    """A text as it is drawn, the fonts that write it, and the language of its Han characters."""

    text: str
    families: tuple[str, ...]
    language: str | None = None


def label(text: str, language: str | None = None, width: int = 24) -> Label:
    """Make any text drawable: all of it visible, in fonts that have it, cut where too wide."""
    shown, families = writable(shorten(visible(text), width))
    return Label(shorten(shown, width), families, language)


def token_labels(tokens: Sequence[str], every: int = 1) -> list[Label]:
    """A label for each so-many-th token of one sequence, which is in one language."""
    language = language_of(tokens)
    return [label(token, language if language_of([token]) else None) for token in tokens[::every]]


def visible(text: str) -> str:
    """A text in which everything can be seen: blanks, newlines and controls get marks.

    Args:
        text: A token, as it is. Nothing in it is read as math or markup.

    Returns:
        ``∅`` for no text, ``␣`` for a blank at either end, ``↵`` for a newline, ``⇥`` for a tab,
        code-point text such as ``U+202E`` for what has no shape of its own.

    Example:
        >>> visible(""), visible(" a b"), visible("$x$"), visible("end" + chr(10))
        ('∅', '␣a b', '$x$', 'end↵')
    """
    if not text:
        return EMPTY
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    blanks_after = len(text) - lead - len(inner)
    shown = "".join(_visible_character(character, inner) for character in inner)
    if unicodedata.category(inner[:1] or "a").startswith("M"):
        # A vowel sign or an accent alone would sit upon the axis; a circle carries it.
        shown = CIRCLE + shown
    return BLANK * lead + shown + BLANK * blanks_after


def _visible_character(character: str, text: str) -> str:
    category = unicodedata.category(character)
    if character == "\n" or category in ("Zl", "Zp"):
        return NEWLINE
    if character == "\t":
        return TAB
    if category == "Zs" and character != " ":
        return BLANK
    if is_guide(character) and len(text) > 1:
        return character
    return code_point(character) if category in ("Cc", "Cf", "Cs", "Co", "Cn") else character


def code_point(character: str) -> str:
    """A character by its number.

    Example:
        >>> code_point("我")
        'U+6211'
    """
    return f"U+{ord(character):04X}"


def shorten(text: str, width: int = 24) -> str:
    """Cut a text that is wider than so many Latin letters, and end it in ``…``.

    Example:
        >>> shorten("注意力注意力", width=8)
        '注意力…'
    """
    total = 0
    for place, character in enumerate(text):
        total += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if total > width:
            room = text[:place]
            while room and _width(room) > width - 1:
                room = room[:-1]
            return room + CUT
    return text


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def writable(text: str) -> tuple[str, tuple[str, ...]]:
    """A visible text that the fonts at hand can write, and those fonts' families.

    Characters without a font become code-point text, because a box says nothing.
    """
    families = families_for(text)
    if families:
        return text, families
    known = [bool(families_for(character)) for character in text]
    parts: list[str] = []
    for character, has_glyph in zip(text, known, strict=True):
        parts.append(character if has_glyph else f" {code_point(character)} ")
    spelled = " ".join("".join(parts).split())
    if not families_for(spelled):
        # Each letter has a font, but no fonts together: spell all that is not plain ASCII.
        spelled = " ".join(c if c.isascii() else code_point(c) for c in text)
    _say_once()
    return spelled, families_for(spelled)


@lru_cache(maxsize=1)
def _say_once() -> None:
    # Logged and not warned, because a picture with code points is no reason to stop a program
    # that turns warnings into errors.
    _log.warning(
        "No font on this machine has some characters of the labels; they are written as code "
        "points such as U+6211. Install fonts with: %s",
        install_line("fonts"),
    )


def pair(read: str, written: str) -> str:
    """A text and what was made of it, each in its own direction, from left to right.

    Without the marks between them, an Arabic text would turn the order of a date behind it.
    """
    return f"\u200e\u2068{read}\u2069 → \u2068{written}\u2069"


def language_of(labels: Sequence[str]) -> str | None:
    """The language whose shapes Han characters should take, guessed from their company.

    Chinese, Japanese and Korean share code points that each draws in its own way.

    Returns:
        A BCP 47 tag for a font that has the shapes of several languages, or None without Han.

    Example:
        >>> language_of(["東", "京", "へ"]), language_of(["我", "爱"]), language_of(["a"])
        ('ja', 'zh-Hans', None)
    """
    text = "".join(labels)
    if any("\u3040" <= character <= "\u30ff" for character in text):
        return "ja"
    if any("\uac00" <= character <= "\ud7a3" for character in text):
        return "ko"
    return "zh-Hans" if any("\u4e00" <= character <= "\u9fff" for character in text) else None
