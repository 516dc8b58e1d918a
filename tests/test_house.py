"""The house stands as it was drawn: its rows, its front door, its manners."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import manyheads

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "manyheads"

# From the roof down. A part imports from the rows below its own, never from beside it.
# "manyheads" is the package's front door, `__init__.py`.
ROWS = """
__main__
cli
interop lab pytest_plugin
manyheads
doctor training
lens models tasks tutorial
probe layers
laws
cache
functional
masks positions
shapes files
errors extras
"""
HEIGHT = {part: -row for row, line in enumerate(ROWS.split("\n")) for part in line.split()}


def part_of(module: str) -> str:
    """The part of the house in which a dotted module lives: "manyheads.masks.base" -> "masks"."""
    return [*module.split("."), "manyheads"][1]


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and part of every import from manyheads, of lazy ones and those for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = [*module.split("."), "__init__"] if is_package else module.split(".")
                base = ".".join([*parents[: -node.level], *base.split(".")]).rstrip(".")
            names = [base]
            if base == "manyheads":  # a part of it, or a public name; the version hangs on nothing
                taken = {alias.name for alias in node.names} - {"__version__"}
                names = [f"{base}.{name}" if name in HEIGHT else base for name in taken]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "manyheads":
                yield node.lineno, part_of(name)


def wrong_imports(path: Path, module: str) -> Iterator[str]:
    own = part_of(module)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for line, part in imports(tree, module, path.name == "__init__.py"):
        if part != own and HEIGHT[part] >= HEIGHT[own]:
            yield f"{path.name}:{line}: {own} imports {part}, which does not lie below it"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_part_has_its_place_in_the_picture() -> None:
    parts = {part_of(module_name(path)) for path in SOURCE.rglob("*.py")}
    assert parts <= HEIGHT.keys()


def test_imports_point_down_and_never_sideways() -> None:
    paths = SOURCE.rglob("*.py")
    wrong = [line for path in paths for line in wrong_imports(path, module_name(path))]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "code", "lawful"),
    [
        ("manyheads.functional.fused", "from manyheads.masks import Causal", True),
        ("manyheads.functional.fused", "from .reference import attend", True),
        ("manyheads.functional.fused", "from ..masks.base import Mask", True),
        ("manyheads.functional.fused", "from manyheads import __version__, errors", True),
        ("manyheads.functional.fused", "from manyheads import Causal", False),
        ("manyheads.functional.fused", "from .. import cache", False),
        ("manyheads.functional.fused", "def f():\n    import manyheads.layers.norm", False),
        ("manyheads.masks.causal", "from ..positions.alibi import slopes", False),
        ("manyheads.shapes", "from . import masks", False),
        ("manyheads.cli.train", "import manyheads as mh", True),
        ("manyheads.layers.norm", "import manyheads as mh", False),
    ],
)
def test_the_reading_of_imports(module: str, code: str, lawful: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert (list(wrong_imports(path, module)) == []) is lawful


def test_import_loads_nothing_optional_and_stays_silent() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {re.split(r"\W*[\[<>=]", line)[0] for lines in extras.values() for line in lines}
    optional = {name.replace("-", "_") for name in names - {"manyheads"}}
    assert {"rich", "matplotlib", "lightning", "cyclopts", "babel"} <= optional
    code = "import sys, manyheads, torch; print(*sys.modules, torch.cuda.is_initialized())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    *loaded, cuda = done.stdout.split()
    assert done.stderr == ""
    assert cuda == "False"
    assert {name.split(".")[0] for name in loaded} & optional == set()
    assert {"torch._dynamo", "torch._inductor"}.isdisjoint(loaded), "import compiles nothing"


def test_every_public_name_is_explained() -> None:
    silent = []
    for name in getattr(manyheads, "__all__", []):
        public = getattr(manyheads, name)
        if isinstance(public, str):  # the version
            continue
        doc = public.__doc__ or ""  # its own, not its base's
        fault = isinstance(public, type) and issubclass(public, Exception)
        if not doc or (callable(public) and not fault and ">>>" not in doc):
            silent.append(name)
    assert silent == [], "these lack a docstring, or an example where they can be called"


def test_no_text_names_this_machine_or_a_registry() -> None:
    local = re.compile(r"(?<![\w.])/(?:work|root|home|opt|Users)/|[\w-]*(?:pypi|pythonhosted)\.org")
    kept = ["src", "tests", "examples", "docs", "benchmarks", ".ci"]
    paths = [*ROOT.glob("[!.]*"), *(path for name in kept for path in (ROOT / name).rglob("*"))]
    readable = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".csv", ""}
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in paths
        if path.is_file() and path.suffix in readable
        for found in local.finditer(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_the_front_door_says_the_same_names_to_readers_and_to_the_interpreter() -> None:
    source = (ROOT / "src/manyheads/__init__.py").read_text(encoding="utf-8")
    read = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("manyheads.")
        for alias in node.names
    }
    run = {
        (f"manyheads.{part}", name) for part, names in manyheads._PARTS.items() for name in names
    }
    assert read == run
