"""Train a Transformer to read dates, and see that it found out by itself where to look.

    python examples/06_dates.py [FOLDER]

It is told the answers, never where they stand: "June 4, 2021" and "2021年6月4日" are 2021-06-04.
It needs Lightning and Babel: pip install '.[training]'. With FOLDER, and matplotlib installed, the
heads of one date become FOLDER/dates.png.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from manyheads.errors import MissingExtraError
from manyheads.lens import draw_heads
from manyheads.tasks import Dates
from manyheads.tasks.vocabulary import BOS_ID
from manyheads.training import Recipe, Trained, alignment_mass, exact_match, train

CROSS = "decoder.0.cross"


def cross_weights(trained: Trained, source: str, written: str) -> Tensor:
    """Where each head looks for each character that is written (heads, written, source)."""
    read = torch.tensor([trained.source_vocabulary.encode(source)])
    stream = torch.tensor([[BOS_ID, *trained.target_vocabulary.encode(written)]])
    with torch.no_grad():
        _, weights = trained.model.with_weights(read, stream)
    return weights[CROSS][0, :, :-1]  # without the row that writes the end


if __name__ == "__main__":
    try:
        task = Dates(locales=("en", "zh"), styles=("long",))
        recipe = Recipe(steps=300, warmup=30, check_every=300)
        trained = train(task, recipe, progress="none")
    except MissingExtraError as missing:
        print(missing)
        raise SystemExit(0) from None

    test = task.split("test")[:500]
    right = exact_match(trained, test)
    print(f"{right:.0%} of {len(test)} unseen dates are right after {recipe.steps} steps.")
    best = {field: heads[0] for field, heads in alignment_mass(trained, test).items()}
    for field in ("year", "month", "day"):
        rows = [
            len(places) / len(example.source)
            for example in test
            for name, places in zip(example.fields, example.alignment, strict=True)
            if name == field
        ]
        even = sum(rows) / len(rows)
        mass = best[field].mass
        print(
            f"{field:5}: head {best[field].head} has {mass:.0%} of its weight on it, "
            f"an even one {even:.0%}"
        )
        assert mass > 2 * even

    # Below each character that is written, the one that the head of its field reads most.
    for kind in ("en long", "zh long"):
        example = next(each for each in test if each.kind == kind)
        weights = cross_weights(trained, example.source, example.target)
        most = weights.argmax(dim=-1)
        read = [
            example.source[most[best[field].head, row]] if field else " "
            for row, field in enumerate(example.fields)
        ]
        print(f"{example.source}\n  written {example.target}\n  reading {''.join(read)}")

    if len(sys.argv) > 1:
        path = Path(sys.argv[1]) / "dates.png"
        names = {(CROSS, head.head): f"head {head.head}: {field}" for field, head in best.items()}
        written, read = list(example.target), list(example.source)
        draw_heads({CROSS: weights}, written, read, names=names, path=path)
        print("wrote", path)
