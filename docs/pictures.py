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
from manyheads.lens import draw_heads

ROOT = Path(__file__).parents[1]
LENGTH = 12
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7])

CAUSAL = {
    "causal": mh.Causal(),
    "& window": mh.Causal() & mh.Window(4),
    "& (window | global)": mh.Causal() & (mh.Window(3) | mh.Global(0)),
    "& documents": mh.Causal() & mh.Documents(DOCUMENTS),
}
BOTH = {
    "window": mh.Window(3),
    "window | global": mh.Window(2) | mh.Global((0, 6)),
    "causal | prefix": mh.Causal() | mh.Prefix(5),
    "padding": mh.Padding(lengths=torch.tensor([9])),
}
SPARSE = {
    "dilated": mh.Dilated(3, step=2),
    "& strided": mh.Causal() & mh.Strided(4),
    "& fixed": mh.Causal() & mh.Fixed(4),
    "& dyadic": mh.Causal() & mh.Dyadic(),
}


def draw_masks(folder: Path) -> None:
    """A page of masks: a row asks, a column is seen where it is dark."""
    labels = [str(place) for place in range(LENGTH)]
    kinds = {"one direction": CAUSAL, "both directions": BOTH, "few keys": SPARSE}
    seen = {
        kind: torch.cat([mask.dense(LENGTH)[0] for mask in masks.values()]).float()
        for kind, masks in kinds.items()
    }
    names = {
        (kind, place): name for kind, masks in kinds.items() for place, name in enumerate(masks)
    }
    figure = draw_heads(seen, labels, labels, names=names)
    # The last axes are the scale. A mask is no weight: it has two words and nothing between.
    scale = figure.axes[-1]
    scale.set_yticks([0, 1], ["hidden", "may see"])
    scale.set_ylabel("")
    figure.savefig(folder / "masks.png")


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
    draw_masks(folder)
    draw_reversal(folder)
    copy_demo(folder)
