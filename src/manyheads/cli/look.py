"""``manyheads look``: every head of any model on one text, or what a mask looks like."""

from pathlib import Path

from cyclopts import App
from rich.table import Table
from rich.text import Text

from manyheads.cli.beside import see_all
from manyheads.cli.console import say
from manyheads.cli.seen import Seen
from manyheads.cli.shades import heatmap
from manyheads.cli.write_heads import table, writer
from manyheads.errors import OptionError
from manyheads.files import PAGES
from manyheads.lens import HeadSummary, Portrait

look = App(
    name="look",
    help="Print what each head of any model does, and draw the clearest; or draw a mask.",
)
look.command("manyheads.cli.mask:mask", help="Draw a mask, and count what it leaves.")

DULL = ("evenly", "mixed", "first token")


@look.default
def heads(
    model: str,
    text: str | None = None,
    /,
    *,
    out: list[Path] | None = None,
    head: str | None = None,
    inputs: list[str] | None = None,
    beside: list[str] | None = None,
    beside_model: list[str] | None = None,
) -> None:
    """Print what each head does, and one of them as a heatmap.

    Args:
        model: The folder of a training run or of a Hugging Face model, "smollm2", "minilm" or the
            name of another installed package of weights, or file.py:name, where an encode(text)
            beside it gives ids.
        text: What the model reads; a file.py:name can be left to an example of its input.
        out: Also write all heads: .png, .svg or .pdf (a picture), .html (a page to look around in),
            .json or .csv (the table), .npz (arrays). May be given more than once.
        head: The head to draw here, as LAYER:NUMBER; the clearest unless given.
        inputs: For a file.py:name, shapes or names instead of a text; see manyheads doctor.
        beside: Another text, which the .html page compares with the first. May be given more than
            once.
        beside_model: Another model, as MODEL is named, that reads the same on the .html page:
            before and after a training, say. It has as many layers and heads, and the same tokens.
    """
    has_page = any(path.suffix.lower() in PAGES for path in out or ())
    for option, others in (("--beside", beside), ("--beside-model", beside_model)):
        if others and not has_page:
            raise OptionError(
                f"{option} must have a page to stand on; got {option}={others[0]!r} without one. "
                f"Add --out heads.html."
            )
    writers = [writer(path, text or model) for path in out or ()]
    readings = see_all([model, *(beside_model or ())], [text, *(beside or ())], inputs or ())
    seen = next(iter(readings.values()))
    chosen = _clearest(table(seen)) if head is None else _named(head, seen)
    # Written first, so that a file which cannot be written is no surprise below the table.
    for write in writers:
        write(readings)
    # A line each, so that a terminal does not turn their order where one runs from the right.
    for line in seen.lines:
        say(line)
    say(table_of(seen))
    portrait = next(each for each in seen.portraits if each.layer == chosen.layer)
    say(f"\n{chosen.layer}, head {chosen.head}: {chosen.does}")
    say(_drawn(seen, portrait, chosen.head))
    for path in out or ():
        say(f"All heads are in {path}")


def table_of(seen: Seen) -> Table:
    """A line for each head: what it does, and the numbers that tell it."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("attention", no_wrap=True)
    shown.add_column("head", justify="right", no_wrap=True)
    shown.add_column("looks at", no_wrap=True)
    itself, whom = "itself", "the query itself"
    if any(seen.crosses(portrait.layer) for portrait in seen.portraits):
        itself, whom = "place", "the key at its own place"
    for name in ("peak", "keys", "away", "before", itself, "first", "same", "induction"):
        shown.add_column(name, justify="right", no_wrap=True)
    for each in table(seen):
        masses = (each.previous, each.itself, each.first, each.duplicate, each.induction)
        shown.add_row(
            Text(each.layer),
            str(each.head),
            each.does,
            f"{each.peak:.2f}",
            f"{each.effective_keys:.1f}",
            f"{each.distance:.1f}",
            *("" if mass is None else f"{mass:.2f}" for mass in masses),
        )
    shown.caption = (
        "peak: mean largest weight of a query. keys: how many it spreads over. away: tokens to "
        f"what it reads. The rest: mean weight on the token before, {whom}, the first "
        "token, earlier copies of the token, and what followed those."
    )
    shown.caption_justify = "left"
    return shown


def _drawn(seen: Seen, portrait: Portrait, head: int) -> str:
    cells = portrait.cells[head]
    queries, keys = seen.queries[portrait.layer], seen.keys[portrait.layer]
    if portrait.is_exact:
        return heatmap(cells, queries, keys)
    length = portrait.lengths[0]
    return heatmap(cells, [queries[-(-row * length // len(cells))] for row in range(len(cells))])


def _clearest(heads: list[HeadSummary]) -> HeadSummary:
    """The sharpest head that does something one can name."""
    return max(heads, key=lambda each: (each.does not in DULL, each.peak))


def _named(name: str, seen: Seen) -> HeadSummary:
    layer, _, number = name.rpartition(":")
    for each in table(seen):
        if (each.layer, str(each.head)) == (layer, number):
            return each
    raise OptionError(
        f"--head must be LAYER:NUMBER of the table; got --head={name!r}. The first is "
        f"{table(seen)[0].layer}:0."
    )
