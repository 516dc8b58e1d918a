"""What is kept of one call to look at later: small at any length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.functional import Statistics
from manyheads.functional.pooled import Pooled
from manyheads.functional.window import window
from manyheads.lens.checks import check_call, check_tensor
from manyheads.lens.glance import glance
from manyheads.lens.summary import HeadSummary, sum_up
from manyheads.probe import AttentionCall
from manyheads.probe.call import owned

MOST_CELLS, MOST_ROWS, KEYS, BINS = 128, 512, 5, 128


@dataclass(frozen=True, eq=False)
class Cutout:
    """The exact weights of some neighbouring queries on some neighbouring keys.

    Args:
        rows: The first query, and the one after the last.
        keys: The first key, and the one after the last.
        weights: (heads, rows, keys).
    """

    rows: tuple[int, int]
    keys: tuple[int, int]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Portrait:
    """The heads of one call on one sequence, in at most 50 kB a head.

    Args:
        layer: The name of its layer.
        lengths: (q_len, kv_len).
        cells: (heads, height, width), the weights themselves, or the greatest weight of each cell
            where there are more than 128 tokens.
        rows: The queries whose strongest keys are kept: all of them, or 512 spread evenly.
        top_keys: (heads, rows, 5), -1 where a row sees fewer.
        top_weights: (heads, rows, 5).
        profiles: By name, (heads, bins): numbers along the queries, averaged in each bin.
        summaries: A head's numbers each, without the `strongest` keys of all queries.
        cutouts: Windows whose weights are kept beside the cells.
        call: The sequence's call itself, if it was to be kept for `explore`.
    """

    layer: str
    lengths: tuple[int, int]
    cells: Tensor
    rows: Tensor
    top_keys: Tensor
    top_weights: Tensor
    profiles: dict[str, Tensor]
    summaries: Sequence[HeadSummary]
    cutouts: Sequence[Cutout] = ()
    call: Statistics | None = None

    @property
    def is_exact(self) -> bool:
        """Whether each cell is one weight."""
        return tuple(self.cells.shape[1:]) == self.lengths


def portray(
    call: Statistics,
    tokens: Int[Tensor, "*batch kv_len"] | None = None,
    *,
    layer: str | None = None,
    sequence: int = 0,
    windows: Sequence[tuple[slice, slice]] = (),
    live: bool = False,
) -> Portrait:
    """Keep what `write_page` shows of a call; to be given to `probe.watch` as ``each``.

    Args:
        call: What `probe.watch` saw, or `statistics` or `of_weights` give.
        tokens: The ids of the text's tokens, for self-attention.
        layer: The name of its layer; None where a watched model tells it.
        sequence: Which sequence of the batch.
        windows: Queries and keys whose weights to keep exactly in a call that is longer than 128
            tokens. What lies outside of the call is left out.
        live: Whether to keep q and k too, so that `explore` can compute any exact weight.

    Raises:
        OptionError: If there is no such sequence, nobody in it, or weights are no numbers.
        ShapeError: If the tokens are not one a key.

    Example:
        >>> import torch, manyheads as mh
        >>> model = mh.MultiHeadAttention(16, 2).eval()
        >>> with mh.probe.watch(model, each=mh.lens.portray) as found:
        ...     _ = model(torch.randn(1, 300, 16))
        >>> found[0].cells.shape, found[0].top_keys.shape
        (torch.Size([2, 128, 128]), torch.Size([2, 300, 5]))
    """
    check_call(call)
    if tokens is not None:
        check_tensor("tokens", tokens, kinds="whole")
    name = layer or (call.where if isinstance(call, AttentionCall) else "attention")
    batch, heads, q_len, _ = call.call.q.shape
    kv_len = call.call.k.shape[2]
    if not isinstance(sequence, int) or not 0 <= sequence < batch:
        raise OptionError(
            f"sequence must be one of the {batch} of the call; got sequence={sequence}. The first "
            f"is 0."
        )
    if not (heads and q_len and kv_len):
        raise OptionError(
            f"a call must have heads, queries and keys to be portrayed; got {heads} heads, "
            f"q_len={q_len}, kv_len={kv_len} in {name}. Give a text of at least one token."
        )
    whole, one = slice(0, kv_len), slice(sequence, sequence + 1)
    alone = Statistics(window(call.call, one, slice(0, q_len), whole))
    ids = tokens[sequence] if tokens is not None and tokens.ndim == 2 else tokens
    is_exact = q_len <= MOST_CELLS and kv_len <= MOST_CELLS
    pooled = Pooled(alone.total(), kv_len, min(q_len, MOST_CELLS), min(kv_len, MOST_CELLS), "max")
    seen, cells = glance(alone, ids, pooled), pooled.answer()
    if not bool(cells.isfinite().all()):
        raise OptionError(
            f"weights must be finite to be portrayed; got NaN in {name}. Let mh.doctor.examine "
            f"find where they arise."
        )
    rows = _spread(q_len, min(q_len, MOST_ROWS), call.call.q.device)
    top = Statistics(window(call.call, one, rows, whole)).top(KEYS)
    return Portrait(
        layer=name,
        lengths=(q_len, kv_len),
        cells=cells[0].float().cpu(),
        rows=rows.cpu(),
        top_keys=top.keys[0].cpu(),
        top_weights=top.weights[0].float().cpu(),
        profiles={
            "effective keys": _binned(alone.entropy()[0].exp()),
            "distance": _binned(seen.distance[0]),
        },
        summaries=[replace(each, strongest=()) for each in sum_up(name, alone, seen, ids)],
        cutouts=() if is_exact else _cutouts(alone, windows),
        call=Statistics(owned(alone.call)) if live else None,
    )


def _cutouts(alone: Statistics, windows: Sequence[tuple[slice, slice]]) -> list[Cutout]:
    lengths = alone.call.q.shape[2], alone.call.k.shape[2]
    found = []
    for rows, keys in windows:
        (first, last, _), (low, high, _) = rows.indices(lengths[0]), keys.indices(lengths[1])
        if first < last and low < high:
            weights = alone.weights(slice(first, last), slice(low, high))[0]
            found.append(Cutout((first, last), (low, high), weights.float().cpu()))
    return found


def _spread(length: int, count: int, device: torch.device) -> Tensor:
    """So many numbers from 0 to length - 1, evenly spread, both ends among them."""
    numbers = torch.linspace(0, length - 1, count, dtype=torch.float64, device=device)
    return numbers.round().long()


def _binned(rows: Tensor) -> Tensor:
    """(heads, q_len) as means of at most so many bins."""
    if rows.shape[-1] <= BINS:
        return rows.float().cpu()
    return torch.nn.functional.adaptive_avg_pool1d(rows.float().cpu(), BINS)
