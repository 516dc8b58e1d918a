import datetime
import sys
import unicodedata

import pytest
from babel.dates import format_date

from manyheads.errors import MissingExtraError, OptionError
from manyheads.tasks import Dates, Example, decidable_patterns
from manyheads.tasks.dates import LOCALES

MARCH_4 = datetime.date(2021, 3, 4)


def written(locale: str, style: str, date: datetime.date = MARCH_4) -> Example:
    task = Dates(locales=(locale,), styles=(style,))
    return task.example(date, task.patterns[0])


def read(example: Example, field: str) -> str:
    return "".join(example.source[i] for i in example.alignment[example.fields.index(field)])


@pytest.mark.parametrize(
    ("locale", "style", "source", "year", "month", "day"),
    [
        ("en", "full", "Thursday, March 4, 2021", "2021", "March", "4"),
        ("es", "long", "4 de marzo de 2021", "2021", "marzo", "4"),
        ("ru", "long", "4 марта 2021\u202fг.", "2021", "марта", "4"),
        ("ru", "short", "04.03.2021", "2021", "03", "04"),
        ("zh", "full", "2021年3月4日星期四", "2021", "3", "4"),
        ("ko", "long", "2021년 3월 4일", "2021", "3월", "4"),
        ("hi", "medium", "4 मार्च 2021", "2021", "मार्च", "4"),
        ("ar_EG", "long", "٤ مارس ٢٠٢١", "٢٠٢١", "مارس", "٤"),
        ("fa", "short", "۲۰۲۱/۳/۴", "۲۰۲۱", "۳", "۴"),
    ],
)
def test_a_locale_writes_its_way_and_the_fields_are_known(
    locale: str, style: str, source: str, year: str, month: str, day: str
) -> None:
    example = written(locale, style)
    assert example.source == source
    assert example.target == "2021-03-04"
    assert [read(example, f) for f in ("year", "month", "day")] == [year, month, day]
    assert example.alignment[4] == example.alignment[7] == ()  # the dashes come from nowhere


@pytest.mark.parametrize("locale", LOCALES)
def test_the_text_is_babel_s_own(locale: str) -> None:
    latin = {ord(c): str(unicodedata.digit(c)) for c in "٠١٢٣٤٥٦٧٨٩"}
    patterns = [p for p in Dates().patterns if p.locale == locale and p.style != "yMMMEd"]
    assert patterns
    for pattern in patterns:
        for n in range(0, 400, 3):
            date = MARCH_4 + datetime.timedelta(days=n)
            text, _ = pattern.write(date)
            assert text.translate(latin) == format_date(date, pattern.style, locale)


def test_eight_locales_by_default_in_seven_scripts() -> None:
    assert len(LOCALES) == 8
    letters = {c for c in Dates().source_vocabulary.characters if c.isalpha()}
    scripts = {unicodedata.name(c).split()[0] for c in letters}
    assert {"LATIN", "GREEK", "CYRILLIC", "CJK", "HANGUL", "DEVANAGARI", "ARABIC"} <= scripts


def test_a_text_has_one_reading_only() -> None:
    readings: dict[str, str] = {}
    for pattern in Dates(styles=("full", "long", "medium", "short", "yMd", "yMMMEd")).patterns:
        for n in range(366):
            date = datetime.date(2028, 1, 1) + datetime.timedelta(days=n)
            text, _ = pattern.write(date)
            assert readings.setdefault(text, date.isoformat()) == date.isoformat()


def test_patterns_that_two_locales_read_differently_go_from_both() -> None:
    styles = [(p.locale, p.style) for p in decidable_patterns(("en", "es"), ("long", "yMd"))]
    assert styles == [("en", "long"), ("es", "long")]  # 3/4/2021 is March or April
    alone = [(p.locale, p.style) for p in decidable_patterns(("es",), ("long", "yMd"))]
    assert alone == [("es", "long"), ("es", "yMd")]


def test_two_digit_years_are_left_out() -> None:
    assert [p.style for p in decidable_patterns(("en",), ("long", "short"))] == ["long"]


def test_no_test_date_is_trained_on_in_any_locale_or_style() -> None:
    task = Dates(first_year=2000, last_year=2001, train_size=3000, test_size=300)
    trained = {e.target for e in task.split("train")}
    tested = {e.target for e in task.split("test")}
    assert len(trained) > 500 and len(tested) > 50
    assert not trained & tested


def test_options_survive_json() -> None:
    task = Dates(locales=("zh", "ru"))
    options = {**task.options(), "locales": ["zh", "ru"], "styles": list(task.styles)}
    assert Dates(**options) == task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"locales": ("xx",)}, r"locale must be one that CLDR knows; got locale='xx'\. Pass a"),
        ({"locales": ()}, r"locales must be a tuple of at least one text; got locales=\(\)\."),
        ({"locales": "en"}, r"got locales='en'\. Pass locales=\('en',\)\."),
        ({"styles": ("wide",)}, r"style must be one of full, long, .*; got style='wide'\."),
        ({"locales": ("en",), "styles": ("short",)}, r"got locale='en' with none\. Add 'long'"),
        ({"first_year": 2001, "last_year": 2000}, r"got first_year=2001, last_year=2000\."),
        ({"first_year": 99}, r"from 1000 to 9999; got first_year=99"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Dates(**options)  # type: ignore[arg-type]


def test_without_babel_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel.dates", None)
    with pytest.raises(MissingExtraError, match=r'Run: pip install .*"lightning'):
        Dates(locales=("sv",))
