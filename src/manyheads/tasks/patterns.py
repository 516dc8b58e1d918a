"""How a locale writes a date, read from the CLDR tables that Babel ships."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from manyheads.errors import MissingExtraError, OptionError
from manyheads.extras import install_line

# CLDR's letters for the parts of a date that can be read back; a pattern with any other letter
# (era, quarter, week of the year) is left out.
FIELDS = {"y": "year", "M": "month", "L": "month", "d": "day", "E": "weekday", "c": "weekday"}
STYLES = ("full", "long", "medium", "short")

# Babel writes Latin digits everywhere; these are the first digits of the systems that some
# locales use by default (Unicode keeps each system's ten digits in one run).
_ZEROS = {
    "arab": "\u0660",
    "arabext": "\u06f0",
    "beng": "\u09e6",
    "deva": "\u0966",
    "mymr": "\u1040",
    "tibt": "\u0f20",
}


@dataclass(frozen=True)
class Pattern:
    """One way in which one locale writes a date.

    Args:
        locale: CLDR's name of the locale, such as "zh" or "ar_EG".
        style: "full", "long", "medium", "short", or a skeleton such as "yMMMEd".
        parts: (CLDR letters or "", literal text or "") in reading order.
    """

    locale: str
    style: str
    parts: tuple[tuple[str, str], ...]

    def write(self, date: datetime.date) -> tuple[str, dict[str, tuple[int, ...]]]:
        """Write a date and say which characters carry its year, month and day.

        The text is put together field by field, so the spans are known, not searched for.

        Returns:
            The text, and for each field the positions of its characters.
        """
        text = ""
        spans: dict[str, tuple[int, ...]] = {}
        for letters, literal in self.parts:
            piece = _field_text(self.locale, letters, date) if letters else literal
            if letters:
                spans[FIELDS[letters[0]]] = tuple(range(len(text), len(text) + len(piece)))
            text += piece
        return text, spans


def decidable_patterns(locales: Sequence[str], styles: Sequence[str]) -> tuple[Pattern, ...]:
    """Collect the patterns of these locales whose texts can be read in one way only.

    Left out are: patterns without year, month or day; two-digit years (is 21 the year 1921 or
    2021?); and patterns of different locales that write two dates alike (3/4/2021 is in March
    for en and in April for es): all that take part in such a clash go.

    Args:
        locales: CLDR's names.
        styles: Babel's four styles, or CLDR skeletons; a locale that lacks one is not asked.

    Raises:
        OptionError: If a locale or a style is unknown, or a locale is left with no pattern.
        MissingExtraError: If Babel is not installed.
    """
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Pattern] = {}
    for locale in locales:
        for style in styles:
            parts = _parts(locale, style)
            if parts:
                found.setdefault((locale, parts), Pattern(locale, style, parts))
    patterns = _without_clashes(list(found.values()))
    for locale in locales:
        if all(pattern.locale != locale for pattern in patterns):
            raise OptionError(
                "styles must leave every locale a pattern that can be read in one way only; "
                f"got locale={locale!r} with none. Add 'long' to styles."
            )
    return tuple(patterns)


def _without_clashes(patterns: list[Pattern]) -> list[Pattern]:
    """Leave out the patterns that write two dates alike; a leap year shows every clash."""
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=n) for n in range(366)]
    readings: dict[str, set[datetime.date]] = defaultdict(set)
    writers: dict[str, set[Pattern]] = defaultdict(set)
    for pattern in patterns:
        for day in days:
            text, _ = pattern.write(day)
            readings[text].add(day)
            writers[text].add(pattern)
    clashing = {p for text, dates in readings.items() if len(dates) > 1 for p in writers[text]}
    return [pattern for pattern in patterns if pattern not in clashing]


@cache
def _parts(locale: str, style: str) -> tuple[tuple[str, str], ...] | None:
    """Cut CLDR's pattern into fields and literal text; None where it cannot be read back."""
    dates = _babel_dates()
    parsed = _babel_locale(locale)
    if style in STYLES:
        pattern = dates.get_date_format(style, parsed).pattern
    elif style in parsed.datetime_skeletons:
        pattern = parsed.datetime_skeletons[style].pattern
    elif style in _babel_locale("en").datetime_skeletons:
        return None
    else:
        raise OptionError(
            f"style must be one of {', '.join(STYLES)} or a CLDR skeleton such as 'yMMMEd'; "
            f"got style={style!r}. Pass one of these."
        )
    parts: list[tuple[str, str]] = []
    for kind, value in dates.tokenize_pattern(pattern):
        if kind == "chars":
            parts.append(("", value))
        elif value[0] in FIELDS:
            parts.append((value[0] * value[1], ""))
        else:
            return None
    letters = [letter for letter, _ in parts if letter]
    fields = sorted(FIELDS[letter[0]] for letter in letters if FIELDS[letter[0]] != "weekday")
    return tuple(parts) if fields == ["day", "month", "year"] and "yy" not in letters else None


def _field_text(locale: str, letters: str, date: datetime.date) -> str:
    """Write one field, from a table: the same year, month, day or weekday reads the same."""
    match FIELDS[letters[0]]:
        case "year":
            return _formatted(locale, letters, datetime.date(date.year, 1, 1))
        case "month":
            return _formatted(locale, letters, datetime.date(2000, date.month, 1))
        case "day":
            return _formatted(locale, letters, datetime.date(2000, 1, date.day))
        case _:  # 1 January 2001 was a Monday
            return _formatted(locale, letters, datetime.date(2001, 1, 1 + date.weekday()))


@cache
def _formatted(locale: str, letters: str, date: datetime.date) -> str:
    parsed = _babel_locale(locale)
    text = str(_babel_dates().DateTimeFormat(date, parsed)[letters])
    zero = _ZEROS.get(parsed.default_numbering_system)
    if zero is None:
        return text
    return text.translate({ord("0") + n: chr(ord(zero) + n) for n in range(10)})


@cache
def _babel_locale(name: str) -> Any:
    _babel_dates()
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(name)
    except (UnknownLocaleError, ValueError, TypeError):
        raise OptionError(
            f"locale must be one that CLDR knows; got locale={name!r}. "
            "Pass a name such as 'en', 'zh' or 'ar_EG'."
        ) from None


def _babel_dates() -> Any:
    try:
        import babel.dates
    except ImportError:
        raise MissingExtraError(
            "the dates task must find Babel, which holds the CLDR tables; got babel=missing. "
            f"Run: {install_line('training')}"
        ) from None
    return babel.dates
