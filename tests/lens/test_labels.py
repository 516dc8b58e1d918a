"""VIS-03: what a token says is what stands there, and nothing of it is invisible."""

import numpy as np
import pytest

from manyheads.lens.labels import label, language_of, pair, shorten, visible, writable
from manyheads.lens.paper import new_figure, write

ODD = ["$", "$x_1$", "a$b$c", "\\frac", "<s>", "_", "^", "%", "{", "&amp;", "U+2212", "−1"]


@pytest.mark.parametrize("token", ODD)
def test_a_token_of_signs_is_shown_as_it_is(token):
    assert visible(token) == token


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", "∅"),
        (" ", "␣"),
        ("  ", "␣␣"),
        (" the", "␣the"),
        ("a b ", "a b␣"),
        ("\n", "↵"),
        ("a\nb", "a↵b"),
        ("\r\n", "U+000D↵"),
        ("\t", "⇥"),
        ("\u00a0", "␣"),
        ("\u3000x", "␣x"),
        ("\u2028", "↵"),
        ("\x00", "U+0000"),
        ("\u202e", "U+202E"),
        ("\ufeffa", "U+FEFFa"),
        ("\udce6", "U+DCE6"),
        ("\u200d", "U+200D"),
        ("\u093f", "◌\u093f"),
    ],
)
def test_what_cannot_be_seen_gets_a_mark(token, shown):
    assert visible(token) == shown


def test_joiners_stay_within_a_word_whose_letters_they_join():
    assert visible("क\u200dष") == "क\u200dष"


def test_marks_of_direction_stay_where_they_direct_and_are_told_where_they_stand_alone():
    assert visible("\u200f٧") == "\u200f٧"
    assert visible("\u200f") == "U+200F"
    assert visible("a\u202eb") == "aU+202Eb"


def right_end(text, width=60):
    """The last columns of a text, as they are drawn."""
    made = label(text, width=200)
    figure = new_figure(4.0, 0.5)
    write(figure.text(1, 0.3, made.text, ha="right", fontsize=12), made)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[:, -width:]


def test_a_date_behind_an_arabic_text_keeps_its_order():
    arabic, date = "السبت، ٧ أبريل ٢١٧٠", "2170-04-07"
    np.testing.assert_array_equal(right_end(pair(arabic, date)), right_end(date))
    assert not np.array_equal(right_end(f"{arabic} → {date}"), right_end(date))


def test_a_wide_character_counts_as_two_letters_when_a_label_is_cut():
    assert shorten("abcdefgh", width=8) == "abcdefgh"
    assert shorten("abcdefghi", width=8) == "abcdefg…"
    assert shorten("一二三四", width=8) == "一二三四"
    assert shorten("一二三四五", width=8) == "一二三…"


@pytest.mark.parametrize("token", ["مرحبا", "שלום", "привет", "Ελλάδα", "café", "e\u0301", "😀"])
def test_the_font_that_matplotlib_brings_writes_many_scripts(token):
    text, families = writable(token)
    assert text == token
    assert families


def test_every_label_has_a_font_even_of_what_no_font_has():
    odd = "\ue000\U0003ffff\U0001f468\u200d\U0001f469\u0d9c\u0dca\u200d\u0dbb\ud800"
    made = label(odd)
    assert made.families
    assert "U+" in made.text


@pytest.mark.parametrize(
    ("tokens", "language"),
    [
        (["我", "爱"], "zh-Hans"),
        (["東", "京", "へ"], "ja"),
        (["서울", "京"], "ko"),
        (["a", "مرحبا"], None),
        ([], None),
    ],
)
def test_han_characters_take_the_shapes_of_their_company(tokens, language):
    assert language_of(tokens) == language
