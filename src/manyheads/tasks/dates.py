"""Dates as people write them in many languages, to be written as ISO 8601."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from manyheads.errors import OptionError
from manyheads.tasks.base import Example, Task
from manyheads.tasks.patterns import Pattern, decidable_patterns
from manyheads.tasks.vocabulary import Vocabulary

# Latin twice, Greek, Cyrillic, Han, Hangul, Devanagari, and Arabic with its own digits.
LOCALES = ("en", "es", "el", "ru", "zh", "ko", "hi", "ar_EG")
STYLES = ("full", "long", "medium", "short", "yMMMEd")

_TARGET_FIELDS = ("year",) * 4 + ("",) + ("month",) * 2 + ("",) + ("day",) * 2


@dataclass(frozen=True)
class Dates(Task):
    """Human-readable dates -> ISO 8601: "четверг, 4 марта 2021 г." -> "2021-03-04".

    The texts are real: patterns, month names, weekdays and digits come from CLDR through Babel.
    Held out is the calendar date itself, so a test date is never trained on in any language or
    format. Patterns that cannot be read in one way only are left out, see ``decidable_patterns``.

    The right attention: each digit of the target reads the characters of its own field.

    Args:
        locales: CLDR's names of the locales.
        styles: "full", "long", "medium", "short", or CLDR skeletons such as "yMMMEd".
        first_year: The first year, included. By default the years are one full turn of the
            calendar; within a single century a model need not read the century.
        last_year: The last year, included.

    Example:
        >>> example = Dates(locales=("ru",), styles=("long",)).split("test")[0]
        >>> example.kind
        'ru long'
        >>> [example.source[i] for i in example.alignment[0]] == list(example.target[:4])
        True
    """

    locales: tuple[str, ...] = LOCALES
    styles: tuple[str, ...] = STYLES
    first_year: int = 1800
    last_year: int = 2199

    name: ClassVar[str] = "dates"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Options come back from a checkpoint as lists.
        object.__setattr__(self, "locales", _texts("locales", self.locales))
        object.__setattr__(self, "styles", _texts("styles", self.styles))
        if not 1000 <= self.first_year <= self.last_year <= 9999:
            raise OptionError(
                "first_year and last_year must be in order and from 1000 to 9999; got "
                f"first_year={self.first_year}, last_year={self.last_year}. Swap or mend them."
            )
        _patterns(self.locales, self.styles)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every way in which this task writes a date."""
        return _patterns(self.locales, self.styles)

    @property
    def source_vocabulary(self) -> Vocabulary:
        return _source_vocabulary(self.locales, self.styles)

    @property
    def target_vocabulary(self) -> Vocabulary:
        return Vocabulary("-0123456789")

    def draw(self, dice: random.Random) -> Example:
        first = datetime.date(self.first_year, 1, 1).toordinal()
        last = datetime.date(self.last_year, 12, 31).toordinal()
        date = datetime.date.fromordinal(dice.randint(first, last))
        # The locale first: one with many patterns is not seen more often.
        locale = dice.choice(self.locales)
        return self.example(date, dice.choice(_patterns_of(self.locales, self.styles)[locale]))

    def example(self, date: datetime.date, pattern: Pattern) -> Example:
        """Write one date in one pattern."""
        source, spans = pattern.write(date)
        return Example(
            source=source,
            target=date.isoformat(),
            alignment=tuple(spans.get(field, ()) for field in _TARGET_FIELDS),
            fields=_TARGET_FIELDS,
            unit=date.isoformat(),
            kind=f"{pattern.locale} {pattern.style}",
        )


def _texts(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(values, str) or not values:
        raise OptionError(
            f"{name} must be a tuple of at least one text; got {name}={values!r}. "
            f"Pass {name}=({values or 'en'!r},)."
        )
    return tuple(values)


@cache
def _patterns(locales: tuple[str, ...], styles: tuple[str, ...]) -> tuple[Pattern, ...]:
    return decidable_patterns(locales, styles)


@cache
def _patterns_of(locales: tuple[str, ...], styles: tuple[str, ...]) -> dict[str, list[Pattern]]:
    patterns = _patterns(locales, styles)
    return {locale: [p for p in patterns if p.locale == locale] for locale in locales}


@cache
def _source_vocabulary(locales: tuple[str, ...], styles: tuple[str, ...]) -> Vocabulary:
    # A leap year holds every month, day and weekday; years such as 3333 give every digit.
    days = [datetime.date(2000, 1, 1) + datetime.timedelta(days=n) for n in range(366)]
    years = [datetime.date(int(str(n) * 4), 1, 1) for n in range(1, 10)]
    patterns = _patterns(locales, styles)
    return Vocabulary.of(pattern.write(day)[0] for pattern in patterns for day in days + years)
