"""What the pages say is true: their Python runs, and their links lead somewhere."""

import contextlib
import doctest
import io
import re
import runpy
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)|(?:src|href)=\"([^\"]+)\"")


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python of a page, each block with the number of lines before it."""
    text = page.read_text(encoding="utf-8")
    found = (match for match in FENCE.finditer(text) if match[1] == "python")
    return [(text.count("\n", 0, match.start(2)), match[2]) for match in found]


def anchors(page: Path) -> set[str]:
    """The names under which GitHub makes a page's headings reachable."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=by_name)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A module, so that what a page defines can be pickled like what a reader's file defines.
    module = types.ModuleType(page.stem)
    monkeypatch.setitem(sys.modules, page.stem, module)
    namespace = vars(module)
    for line, code in blocks(page):
        if code.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
            told = io.StringIO()
            assert runner.run(test, out=told.write, clear_globs=False).failed == 0, told.getvalue()
            namespace.update(test.globs)
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * line + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in (match[1] or match[2] for match in LINK.finditer(prose)):
        if re.match(r"[a-z]+:", link):  # the tests stay off the network
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_trees_are_those_of_the_source() -> None:
    tree = runpy.run_path(str(ROOT / "docs" / "tree.py"))
    for name, every_file in tree["PAGES"].items():
        text = (ROOT / name).read_text(encoding="utf-8")
        drawn = tree["with_tree"](text, every_file=every_file)
        assert text == drawn, f"{name} is old: run python docs/tree.py"
