"""VIS-02: no missing glyph, with fonts or without."""

import logging

import matplotlib
import pytest
import torch

from manyheads.lens import draw_heatmap, fonts, labels

TOKENS = ["我", "爱", "注意力", "[SEP]", "\u22121"]


def words(figure):
    axes = figure.axes[0]
    return [text.get_text() for text in axes.get_yticklabels()]


@pytest.fixture
def bare_machine(monkeypatch):
    """A machine with no font but the one that matplotlib brings."""
    only = fonts.faces()[:1]
    monkeypatch.setattr(fonts, "faces", lambda: only)
    fonts.families_for.cache_clear()
    labels._say_once.cache_clear()
    yield
    fonts.families_for.cache_clear()
    labels._say_once.cache_clear()


def test_matplotlibs_own_font_is_asked_first():
    assert fonts.faces()[0].family == "DejaVu Sans"


def test_chinese_is_written_with_a_font_that_has_it():
    text, families = labels.writable("注意力")
    assert text == "注意力"
    assert families != ("DejaVu Sans",)


@pytest.mark.parametrize(
    "text", ["한국어", "ひらがな", "東京", "हिन्दी", "ไทย", "தமிழ்", "বাংলা", "ქართული"]
)
def test_the_fonts_extra_writes_the_scripts_of_many_tokenizers(text):
    assert labels.writable(text)[0] == text


def test_a_mixture_of_scripts_is_written_by_several_fonts():
    text, families = labels.writable("مرحبا 你好 हिन्दी")
    assert text == "مرحبا 你好 हिन्दी"
    assert len(families) >= 2


def test_a_font_that_draws_boxes_is_no_font():
    assert not any("Last Resort" in face.family for face in fonts.faces())


def test_a_font_file_that_cannot_be_read_has_no_glyphs(tmp_path):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    assert fonts.glyphs(fonts.Face("Broken", str(broken))) == frozenset()


def test_without_a_font_code_points_stand_there_and_it_is_said_once(bare_machine, caplog, tmp_path):
    with caplog.at_level(logging.WARNING, logger="manyheads"):
        for number in range(2):
            figure = draw_heatmap(torch.eye(5), TOKENS, TOKENS, path=tmp_path / f"{number}.png")
    assert words(figure) == ["U+6211", "U+7231", "U+6CE8 U+610F U+529B", "[SEP]", "\u22121"]
    assert len(caplog.records) == 1
    assert 'Install fonts with: pip install "' in caplog.text


def test_settings_are_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setitem(matplotlib.rcParams, "font.family", ["serif"])
    before, backend = matplotlib.rcParams.copy(), matplotlib.get_backend()
    draw_heatmap(torch.eye(5), TOKENS, TOKENS, title="$1", path=tmp_path / "map.png")
    assert matplotlib.rcParams == before
    assert matplotlib.get_backend() == backend
