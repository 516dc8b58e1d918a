"""Draw the pictures of README.md and docs/ anew.

    python docs/pictures.py [FOLDER]

They go to FOLDER, docs/pictures by default. A demo's heads.png is copied if there is one.
"""

import runpy
import shutil
import sys
from pathlib import Path

import torch

import manyheads as mh
from manyheads.lens import draw_masks

ROOT = Path(__file__).parents[1]
LENGTH = 12
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


def copy_demo(folder: Path) -> None:
    """The heads of the last `make demo`."""
    heads = ROOT / "demo" / "heads.png"
    if heads.exists():
        shutil.copyfile(heads, folder / heads.name)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    draw_page_of_masks(folder)
    draw_reversal(folder)
    copy_demo(folder)
