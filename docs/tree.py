"""Write the packages of the source into the READMEs, and every file into CONTRIBUTING.md.

    python docs/tree.py

What stands beside a name is the beginning of its own docstring.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "manyheads"
# Whether a page shows every file, or the packages alone.
PAGES = {"README.md": False, "README.zh-CN.md": False, "CONTRIBUTING.md": True}
BEGIN, END = "<!-- tree: written by docs/tree.py -->\n", "<!-- end of tree -->\n"

WIDTH = 68

# In reading order; what is not named here follows.
ORDER = [
    "functional",
    "masks",
    "positions",
    "layers",
    "cache",
    "models",
    "laws",
    "probe",
    "lens",
    "doctor",
    "tasks",
    "training",
    "cli",
]


def summary(path: Path) -> str:
    """The first words of a file's docstring: up to a colon or semicolon, or a late comma."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = text.split("\n")[0].removesuffix(".").replace("`", "")
    for found in re.finditer("[:;]", line):
        if len(line[: found.start()].split()) > 2:
            line = line[: found.start()]
            break
    commas = [found.start() for found in re.finditer(",", line) if found.start() <= WIDTH]
    return line[: commas[-1]] if len(line) > WIDTH and commas else line


def lines(every_file: bool) -> Iterator[str]:
    """The tree: a line a package, or a line a file."""
    yield "src/manyheads/"
    folders = [folder for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()]
    places = {name: place for place, name in enumerate(ORDER)}
    for folder in sorted(folders, key=lambda f: (places.get(f.name, len(places)), f.name)):
        yield f"  {folder.name + '/':<22}{summary(folder / '__init__.py')}"
        if every_file:
            yield from files(folder)
    for path in sorted(SOURCE.glob("[!_]*.py")):
        yield f"  {path.name:<22}{summary(path)}"


def files(folder: Path) -> Iterator[str]:
    """The files of a package, then its own packages."""
    for path in sorted(folder.glob("[!_]*.py")):
        yield f"    {path.name:<20}{summary(path)}"
    for path in sorted(folder.glob("[!_]*/__init__.py")):
        yield f"    {path.parent.name + '/':<20}{summary(path)}"


def with_tree(text: str, *, every_file: bool) -> str:
    """A page with the tree between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}```\n" + "\n".join(lines(every_file)) + f"\n```\n{END}{after}"


if __name__ == "__main__":
    for name, every_file in PAGES.items():
        page = ROOT / name
        text = with_tree(page.read_text(encoding="utf-8"), every_file=every_file)
        page.write_text(text, encoding="utf-8")
