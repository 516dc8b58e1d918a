"""Which fonts can write a text: from matplotlib, from font packages, from the machine.

Nothing here touches ``rcParams``. A font of a package is made known to matplotlib's font manager
when a text first needs it, because only fonts that it knows can stand in for one another.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

# Packages that are fonts and nothing else, in the order in which they are asked.
FONT_PACKAGES = ("noto_cjk_sans_jp_regular", "manimgx_fonts")
# Where a machine has many fonts, plain ones for running text are asked before ornaments.
PLAIN = ("DejaVu Sans", "Noto Sans", "Source Han Sans", "PingFang", "Hiragino", "Microsoft YaHei")
# Fonts that claim every character and draw a box for it.
BOXES = ("Last Resort", ".LastResort", "Adobe Blank")


@dataclass(frozen=True)
class Face:
    """A font file, and the family name by which matplotlib knows it."""

    family: str
    path: str
    index: int = 0


def faces() -> tuple[Face, ...]:
    """Every font that may be used, best first: matplotlib's own, packages', the machine's."""
    return (*_known_faces()[:1], *_package_faces(), *_known_faces()[1:])


@lru_cache(maxsize=1)
def _known_faces() -> tuple[Face, ...]:
    from matplotlib.font_manager import fontManager

    plain = [
        Face(entry.name, entry.fname, entry.index)
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular")
        and not entry.name.startswith(BOXES)
    ]

    def rank(face: Face) -> tuple[int, str]:
        ranks = [place for place, name in enumerate(PLAIN) if face.family.startswith(name)]
        # "DejaVu Sans" stands before "DejaVu Sans Mono", because it is the shorter name.
        return (min(ranks, default=len(PLAIN)), face.family)

    return tuple(sorted(plain, key=rank))


@lru_cache(maxsize=1)
def _package_faces() -> tuple[Face, ...]:
    from matplotlib.ft2font import FT2Font

    found = []
    for package in FONT_PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.[ot]t[fc]")):
                if "Italic" not in path.name:
                    found.append(Face(FT2Font(str(path)).family_name, str(path)))
    return tuple(found)


@lru_cache(maxsize=1024)
def glyphs(face: Face) -> frozenset[int]:
    """The code points that a font has a glyph for; none if the file cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(face.path, face_index=face.index).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


@lru_cache(maxsize=4096)
def families_for(text: str) -> tuple[str, ...]:
    """The font families that together write a text, in the order matplotlib should try them.

    Returns:
        Family names; empty if no set of fonts writes the whole text without a missing glyph.
    """
    missing = {ord(character) for character in text if not is_guide(character)}
    # One font that has it all looks better than a mixture, and shapes across its characters.
    for face in faces():
        if missing <= glyphs(face) and _writes((face,), text):
            return _register((face,))
    chosen: list[Face] = []
    for face in faces():
        if missing & glyphs(face):
            chosen.append(face)
            missing -= glyphs(face)
        if not missing:
            break
    if missing or not _writes(chosen, text):
        return ()
    return _register(chosen)


def is_guide(character: str) -> bool:
    """Whether a character has no shape but guides others: joins them, varies or directs them.

    The overrides of direction, which make a text look like another, do not belong to these.
    """
    return character in "\u200c\u200d\u200e\u200f\u061c\u2066\u2067\u2068\u2069" or (
        "\ufe00" <= character <= "\ufe0f"
    )


def _register(chosen: Iterable[Face]) -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    known = {(entry.name, entry.fname) for entry in fontManager.ttflist}
    for face in chosen:
        if (face.family, face.path) not in known:
            fontManager.addfont(face.path)
    return tuple(dict.fromkeys(face.family for face in chosen))


def _writes(chosen: Iterable[Face], text: str) -> bool:
    """Whether laying the text out in these fonts passes without a missing glyph.

    Having each character is not enough: a mark and its letter must come from one font.
    """
    from matplotlib.font_manager import get_font

    families = _register(chosen)
    if not families:
        return False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        get_font(_paths(families)).set_text(text)
    return not caught


def _paths(families: tuple[str, ...]) -> list[str]:
    from matplotlib.font_manager import FontProperties, findfont

    return [findfont(FontProperties(family=name), fallback_to_default=False) for name in families]
