"""Write docs/gallery.md and its pictures: every mask, with its expression and its paper.

    python docs/gallery.py [FOLDER]

The page and its pictures go to FOLDER, docs by default.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import manyheads as mh
from manyheads.lens import draw_masks
from manyheads.masks import Mask, parse_mask

ROOT = Path(__file__).parents[1]

HEAD = """# Gallery

Every mask, alone and in the combinations that papers made of them. A row is a query, a column is a
key, and it sees where it is dark. This page and its pictures are drawn by `docs/gallery.py`.

Draw any of them, or one of your own, on the terminal:

```
manyheads look mask "Causal() & (Window(4) | Global(0))"
manyheads look mask "Causal() & Window(256)" --length 4096 --out window.png
```

"""


@dataclass(frozen=True)
class Piece:
    """One mask of the gallery.

    Args:
        name: What it is called.
        mask: As it is written; a `Mask` where text cannot say it, with `code` beside it.
        line: What it is for, in a sentence.
        source: Its paper, as author, year and arXiv number; "" where there is none.
        length: Keys, in tokens.
        q_len: Queries; None means as many.
        heads: Query heads.
        code: The Python of a mask that is not given as text.
        pixel: For a mask of pictures: the pixel whose sight is drawn too.
    """

    name: str
    mask: str | Mask
    line: str
    source: str = ""
    length: int = 16
    q_len: int | None = None
    heads: int = 1
    code: str = ""
    pixel: tuple[int, int] | None = None

    @property
    def rule(self) -> Mask:
        """The mask itself."""
        return parse_mask(self.mask) if isinstance(self.mask, str) else self.mask

    @property
    def expression(self) -> str:
        """The mask as it is written."""
        return self.code or str(self.mask)

    @property
    def file(self) -> str:
        """The name of its picture."""
        return self.name.lower().replace(",", "").replace(" ", "-") + ".png"

    @property
    def pixel_file(self) -> str:
        """The name of the picture of what one pixel sees."""
        return self.file.replace(".png", "-pixel.png")


def every_third(head: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """A function of one's own, as `Rule` takes it."""
    return (q - kv) % 3 == 0


WIDTH = 6  # of the pictures that pixels stand in

GALLERY: dict[str, list[Piece]] = {
    "One direction": [
        Piece(
            "Causal",
            "Causal()",
            "Nobody sees the future: decoders.",
            "Vaswani et al. 2017, 1706.03762",
        ),
        Piece(
            "Causal, behind a cache",
            "Causal()",
            "Six new queries are the last of sixteen keys; positions decide, not indices.",
            q_len=6,
        ),
        Piece(
            "Sliding window",
            "Causal() & Window(4)",
            "Four keys a query, its own included: a cache of four.",
            "Jiang et al. 2023, 2310.06825",
        ),
        Piece(
            "Sliding window with a sink",
            "Causal() & (Window(4) | Global(0))",
            "The first token stays in sight, where heads leave the weight that they do not need.",
            "Xiao et al. 2023, 2309.17453",
        ),
        Piece(
            "Prefix",
            "Causal() | Prefix(5)",
            "The prompt is read in both directions, the answer written in one.",
            "Raffel et al. 2020, 1910.10683",
        ),
        Piece(
            "Documents, causal",
            "Causal() & Documents((0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2))",
            "Texts packed into one row, each alone: no token is padding.",
            "Krell et al. 2021, 2107.02027",
        ),
    ],
    "Both directions": [
        Piece(
            "Window",
            "Window(3)",
            "Only the near are seen, two to either side.",
            "Beltagy et al. 2020, 2004.05150",
        ),
        Piece(
            "Lopsided window",
            "Window(before=4, after=1)",
            "More of the past than of what comes: speech that is written down while it is spoken.",
            "Zhang et al. 2020, 2002.02562",
        ),
        Piece(
            "Padding",
            "Padding(lengths=(11,))",
            "Tokens that only fill a batch are seen by nobody.",
        ),
        Piece(
            "Documents",
            "Documents((0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2))",
            "Each token sees its own document.",
            "Krell et al. 2021, 2107.02027",
        ),
        Piece(
            "Global tokens",
            "Global((0, 8))",
            "A few tokens see all and are seen by all.",
            "Beltagy et al. 2020, 2004.05150",
        ),
        Piece(
            "Longformer",
            "Window(3) | Global((0, 8))",
            "Near neighbours, and a few tokens that carry news across.",
            "Beltagy et al. 2020, 2004.05150",
        ),
    ],
    "Few keys": [
        Piece(
            "Dilated window",
            "Dilated(3, step=2)",
            "As many keys as a window, twice as far.",
            "Beltagy et al. 2020, 2004.05150",
        ),
        Piece(
            "Strided",
            "Causal() & Strided(4)",
            "The last few keys, and beyond them every fourth.",
            "Child et al. 2019, 1904.10509",
        ),
        Piece(
            "Fixed",
            "Causal() & Fixed(4)",
            "One's own stretch, and the last token of every stretch before.",
            "Child et al. 2019, 1904.10509",
        ),
        Piece(
            "Dyadic",
            "Causal() & Dyadic()",
            "Keys at distances 0, 1, 2, 4, 8, ...: as many as the logarithm of the length.",
            "Li et al. 2019, 1907.00235",
        ),
        Piece(
            "Dyadic, by halves",
            "Dyadic('halves')",
            "Position i sees i // 2, i and 2 i: a tree laid flat.",
        ),
        Piece(
            "Random blocks",
            "RandomBlocks(2, block=2, length=16)",
            "Each block of queries sees two blocks that a seed draws for each head.",
            "Zaheer et al. 2020, 2007.14062",
            heads=2,
        ),
        Piece(
            "BigBird",
            "Window(3) | Global(0) | RandomBlocks(1, block=2, length=16)",
            "Neighbours, a global token and random blocks: any token is few steps away.",
            "Zaheer et al. 2020, 2007.14062",
        ),
    ],
    "Pictures": [
        Piece(
            "Neighbourhood",
            f"Neighbourhood({WIDTH}, radius=1)",
            "Each pixel sees the square around it.",
            "Hassani et al. 2023, 2204.07143",
            length=WIDTH**2,
            pixel=(2, 3),
        ),
        Piece(
            "Tiles",
            f"Tiles({WIDTH}, tile=3)",
            "Each pixel sees its own tile: Swin's windows.",
            "Liu et al. 2021, 2103.14030",
            length=WIDTH**2,
            pixel=(2, 3),
        ),
        Piece(
            "Shifted tiles",
            f"Tiles({WIDTH}, tile=3, shift=1)",
            "The next layer's windows, moved, so that news crosses the borders.",
            "Liu et al. 2021, 2103.14030",
            length=WIDTH**2,
            pixel=(2, 3),
        ),
    ],
    "Of your own": [
        Piece(
            "A mask a head",
            "PerHead((Causal(), Causal() & Window(3)))",
            "Each head follows its own mask: here one looks far, one near.",
            "Sukhbaatar et al. 2019, 1905.07799",
            heads=2,
        ),
        Piece(
            "Not",
            "Causal() & ~Window(3)",
            "Only the far past: the first queries see nobody, and their output is 0.",
        ),
        Piece(
            "A function",
            mh.Rule(every_third, "every third"),
            "Whatever can be computed of head and positions.",
            code='Rule(lambda head, q, kv: (q - kv) % 3 == 0, "every third")',
        ),
        Piece(
            "Written out",
            mh.Dense(torch.arange(16)[:, None] % 5 >= torch.arange(16) % 7),
            "A bool tensor, True = may see; the one mask that goes by index.",
            code="Dense(tensor)",
        ),
    ],
}


def page() -> str:
    """The text of docs/gallery.md."""
    parts = [HEAD]
    for title, pieces in GALLERY.items():
        parts.append(f"## {title}\n\n| | mask |\n| --- | --- |\n")
        parts.extend(f"| {_pictures(piece)} | {_words(piece)} |\n" for piece in pieces)
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _pictures(piece: Piece) -> str:
    files = [piece.file, *([piece.pixel_file] if piece.pixel else [])]
    wide = 180 * piece.heads if len(files) == 1 else 180
    return " ".join(
        f'<img src="pictures/gallery/{file}" width="{wide}" alt="{piece.name}">' for file in files
    )


def _words(piece: Piece) -> str:
    expression = piece.expression.replace("|", r"\|")
    words = [f"**{piece.name}**", f"`{expression}`", piece.line]
    if piece.source:
        names, number = piece.source.rsplit(", ", 1)
        words.append(f"[{names}](https://arxiv.org/abs/{number})")
    return "<br>".join(words)


def draw(piece: Piece, folder: Path) -> None:
    """Draw one mask, and for a mask of pictures what one pixel sees."""
    seen = piece.rule.dense(piece.q_len or piece.length, piece.length, num_heads=piece.heads)[0]
    names = [""] if piece.heads == 1 else [f"head {head}" for head in range(piece.heads)]
    draw_masks(dict(zip(names, seen, strict=True)), path=folder / piece.file)
    if piece.pixel is not None:
        row, column = piece.pixel
        sight = seen[0, row * WIDTH + column].view(WIDTH, WIDTH)
        title = f"seen by row {row}, column {column}"
        draw_masks({title: sight}, axes=("row", "column"), path=folder / piece.pixel_file)


def write(folder: Path) -> None:
    """The page, and the pictures beside it."""
    pictures = folder / "pictures" / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    (folder / "gallery.md").write_text(page(), encoding="utf-8")
    for pieces in GALLERY.values():
        for piece in pieces:
            draw(piece, pictures)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
