"""``manyheads look``: every head of a trained model on one text, or what a mask looks like."""

from pathlib import Path

from cyclopts import App
from rich.table import Table
from rich.text import Text

from manyheads.cli.console import say
from manyheads.cli.heads import Sight, look_at
from manyheads.lens import HeadSummary, draw_heads, summarize_heads
from manyheads.lens.labels import pair, visible
from manyheads.training import load

look = App(name="look", help="Print a table of heads, and draw each of them; or draw a mask.")
look.command("manyheads.cli.mask:mask", help="Draw a mask, and count what it leaves.")


@look.default
def heads(run: Path, text: str, /, *, out: Path = Path("heads.png")) -> None:
    """Print a table of heads, and draw each of them.

    Args:
        run: The folder of a training run.
        text: What the model reads.
        out: The picture; .png, .svg or .pdf.
    """
    sight = look_at(load(run), text)
    # Drawn first, so that a picture which cannot be written is no surprise below the table.
    draw_heads(sight.weights, sight.queries, sight.keys, title=pair(text, sight.answer), path=out)
    # A line each, so that a terminal does not turn their order where one runs from the right.
    say(f"read     {text}")
    say(f"written  {sight.answer}")
    say(table_of(sight))
    say(f"Every head is drawn in {out}")


def table_of(sight: Sight) -> Table:
    """A line for each head: how sharp it is, and what it reads for each character written."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("attention", no_wrap=True)
    for name in ("head", "peak", "keys"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("strongest key of each query", overflow="fold")
    for head in summarize_heads(sight.weights):
        table.add_row(
            head.layer,
            str(head.head),
            f"{head.peak:.2f}",
            f"{head.effective_keys:.1f}",
            Text(_read(head, sight.keys[head.layer])),
        )
    table.caption = "peak: mean largest weight of a query. keys: how many it spreads over."
    table.caption_justify = "left"
    return table


def _read(head: HeadSummary, keys: list[str]) -> str:
    return " ".join(visible(keys[place]) if place >= 0 else "." for place in head.strongest)
