"""Portraits as few bytes: what explorer/data.js unpacks."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.lens.portrait import Portrait
from manyheads.lens.summary import MEASURES


@dataclass(frozen=True)
class Fineness:
    """How much of a portrait is packed.

    Args:
        bits: Of each cell: 16 are steps of 1 / 65,535; 8 are squares of steps of 1 / 255.
        side: Cells of a map each way, at most.
        rows: Queries whose strongest keys are packed, at most.
    """

    bits: Literal[8, 16]
    side: int
    rows: int


# Halves of the cells, because a cell must be made of whole ones.
FINENESSES = (
    Fineness(16, 128, 512), Fineness(8, 128, 512), Fineness(8, 128, 256), Fineness(8, 64, 256),
    Fineness(8, 64, 128), Fineness(8, 32, 64), Fineness(8, 32, 32), Fineness(8, 16, 16),
)  # fmt: skip


def pack(
    portraits: Sequence[Portrait], room: int | None = None
) -> tuple[list[dict[str, Any]], bytes]:
    """What is in the bytes, and the bytes: as fine as there is room for.

    Args:
        portraits: Layer by layer.
        room: Bytes at most; None packs the finest.

    Raises:
        OptionError: If not even the coarsest has room.
    """
    for fineness in FINENESSES:
        packed = [_pack(portrait, fineness) for portrait in portraits]
        data = zlib.compress(b"".join(each for _, each in packed))
        if room is None or len(data) <= room:
            return [header for header, _ in packed], data
    raise OptionError(
        f"portraits must fit into the page; got {len(portraits)} layers, of which the coarsest "
        f"picture takes {len(data)} bytes where {room} are left. Watch fewer layers or heads, or "
        f"keep smaller windows."
    )


def _pack(portrait: Portrait, fineness: Fineness) -> tuple[dict[str, Any], bytes]:
    cells, is_exact = portrait.cells, portrait.is_exact
    if max(cells.shape[1:]) > fineness.side:
        cells, is_exact = _coarser(_coarser(cells, 1, fineness.side), 2, fineness.side), False
    step = -(-len(portrait.rows) // fineness.rows)
    first = (len(portrait.rows) - 1) % step  # so that the last query, which writes on, is kept
    rows = portrait.rows[first::step]
    if is_exact and fineness.bits == 16:
        rows = rows[:0]  # the cells say it all
    keys, weights = (
        of[:, first::step][:, : len(rows)] for of in (portrait.top_keys, portrait.top_weights)
    )
    wide = portrait.lengths[1] > 0xFFFF
    header = {
        "layer": portrait.layer,
        "heads": len(cells),
        "lengths": portrait.lengths,
        "height": cells.shape[1],
        "width": cells.shape[2],
        "bits": fineness.bits,
        "exact": is_exact,
        "rows": rows.tolist(),
        "top": keys.shape[2],
        "keyBytes": 4 if wide else 2,
        "windows": [[*each.rows, *each.keys] for each in portrait.cutouts],
        "profiles": list(portrait.profiles),
        "bins": next(iter(portrait.profiles.values())).shape[1],
        "does": [head.does for head in portrait.summaries],
        "numbers": {
            name: [_short(getattr(head, name)) for head in portrait.summaries] for name in MEASURES
        },
    }
    # A key that is not there is the number after the last.
    places = keys.where(keys >= 0, portrait.lengths[1])
    parts = [
        _weights(cells) if fineness.bits == 16 else _squares(cells),
        places.numpy().astype("<i4").tobytes() if wide else _pairs(places),
        _weights(weights),
        *(_weights(each.weights) for each in portrait.cutouts),
        *(each.float().numpy().astype("<f4").tobytes() for each in portrait.profiles.values()),
    ]
    return header, b"".join(parts)


def _coarser(cells: Tensor, dim: int, most: int) -> Tensor:
    """The greatest of neighbours: of n along a dimension, i goes to floor(i * most / n)."""
    count = cells.shape[dim]
    if count <= most:
        return cells
    starts = -(-np.arange(most) * count // most)
    return torch.from_numpy(np.maximum.reduceat(cells.numpy(), starts, axis=dim))


def _squares(weights: Tensor) -> bytes:
    return bytes((weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8).numpy().tobytes())


def _weights(weights: Tensor) -> bytes:
    return _pairs((weights.double().clamp(0, 1) * 0xFFFF).round())


def _pairs(numbers: Tensor) -> bytes:
    """Numbers of two bytes: all low bytes, then all high ones, which zlib makes a third smaller."""
    pairs = np.ascontiguousarray(numbers.numpy().astype("<u2")).view(np.uint8).reshape(-1, 2)
    return bytes(pairs.T.tobytes())


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")
