"""What a mask looks like, and how much it leaves: ``manyheads look mask``."""

from pathlib import Path

from torch import Tensor

from manyheads.cli.console import say, width
from manyheads.errors import OptionError
from manyheads.masks import Mask, PerHead, parse_mask
from manyheads.masks.picture import describe, draw
from manyheads.shapes import check_count

USUAL, MOST_PAIRS = 16, 2**26


def mask(
    expression: str,
    /,
    *,
    length: int | None = None,
    q_len: int | None = None,
    heads: int | None = None,
    block: int | None = None,
    out: Path | None = None,
) -> None:
    """Draw a mask, and count what it leaves.

    A row is a query, a column is a key, and it sees where it is dark.

    Args:
        expression: As written in Python: "Causal() & (Window(8) | Global(0))".
        length: Keys, in tokens; 16 unless given, or told by the mask.
        q_len: Queries, in tokens, the last of the keys; as many unless given.
        heads: Query heads; 1 unless given, or told by the mask.
        block: Draw squares of so many queries and keys as one; what fits unless given.
        out: Also draw a picture; .png, .svg or .pdf.
    """
    rule = parse_mask(expression)
    shapes = [tensor.shape for tensor in rule.tensors()]
    length = _length(rule) if length is None else check_count("--length", length)
    q_len = length if q_len is None else check_count("--q-len", q_len)
    heads = _heads(rule) if heads is None else check_count("--heads", heads)
    batch = max((shape[0] for shape in shapes), default=1)
    if batch * heads * q_len * length > MOST_PAIRS:
        raise OptionError(
            f"--length must leave at most {MOST_PAIRS} pairs to draw; got --length={length}. Draw "
            f"fewer tokens, or the last queries alone with --q-len."
        )
    seen = rule.dense(q_len, length, batch=batch, num_heads=heads)
    block = -(-length // width()) if block is None else check_count("--block", block)
    if out is not None:
        # Drawn first, so that a picture which cannot be written is no surprise below the drawing.
        from manyheads.lens import draw_masks

        draw_masks(_by_name(seen), title=repr(rule), path=out)
    say(repr(describe(rule, seen)))
    if block > 1:
        say(f"A character is {block} queries and {block} keys: █ all see, ▒ some, · none.")
    say(draw(seen, block))
    if out is not None:
        say(f"The mask is drawn in {out}")


def _length(rule: Mask) -> int:
    """How many tokens the facts of a mask tell of."""
    told = [tensor.shape[1] for tensor in rule.tensors() if tensor.ndim == 2]
    counted = [int(tensor.max()) for tensor in rule.tensors() if tensor.ndim == 1]
    return max(told) if told else max(USUAL, *counted) if counted else USUAL


def _heads(rule: Mask) -> int:
    own = [len(part.masks) for part in rule.parts() if isinstance(part, PerHead)]
    return max(own, default=1)


def _by_name(seen: Tensor) -> dict[str, Tensor]:
    batch, heads = seen.shape[:2]
    several = {"batch": batch > 1, "head": heads > 1}

    def name(b: int, h: int) -> str:
        places = {"batch": b, "head": h}
        return " ".join(f"{word} {places[word]}" for word, told in several.items() if told)

    return {name(b, h): seen[b, h] for b in range(batch) for h in range(heads)}
