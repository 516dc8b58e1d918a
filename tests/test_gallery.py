"""The gallery shows every mask, as its page says."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from manyheads.masks import MASKS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


def test_every_mask_hangs_in_the_gallery(gallery: ModuleType) -> None:
    shown = set()
    for pieces in gallery.GALLERY.values():
        for piece in pieces:
            shown |= {type(part).__name__ for part in piece.rule.parts()}
    assert shown >= MASKS.keys()


def test_the_page_is_what_its_code_writes(gallery: ModuleType) -> None:
    assert (DOCS / "gallery.md").read_text(encoding="utf-8") == gallery.page()


def test_its_pictures_are_drawn_by_its_code(gallery: ModuleType, tmp_path: Path) -> None:
    piece = gallery.GALLERY["Pictures"][0]
    gallery.draw(piece, tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {piece.file, piece.pixel_file}
    kept = {path.name for path in (DOCS / "pictures" / "gallery").iterdir()}
    named = {
        name
        for pieces in gallery.GALLERY.values()
        for each in pieces
        for name in (each.file, *([each.pixel_file] if each.pixel else []))
    }
    assert kept == named


def test_no_picture_of_the_first_pages_is_wider_than_a_page() -> None:
    for name in ("heads.png", "page.png", "reverse.png"):
        header = (DOCS / "pictures" / name).read_bytes()[:24]
        assert int.from_bytes(header[16:20]) <= 1600, name
