"""Portraits as few bytes: what explorer/data.js unpacks."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        steps: In how many steps a row goes to its own greatest weight. Up to 255, in a byte, they
            are steps of the square root.
        side: Cells of a map each way, at most.
        rows: Queries whose strongest keys are packed, at most.
    """

    steps: int
    side: int
    rows: int


FINEST, ROUGH = 50_000, 255
"""Steps that make a weight right to 1 / 100,000 of its row's greatest; and to 1 / 255."""

# Halves of the cells, because a cell must be made of whole ones.
FINENESSES = (
    Fineness(FINEST, 128, 512), Fineness(5_000, 128, 512), Fineness(ROUGH, 128, 512),
    Fineness(ROUGH, 128, 256), Fineness(ROUGH, 64, 256), Fineness(ROUGH, 64, 128),
    Fineness(ROUGH, 32, 64), Fineness(ROUGH, 32, 32), Fineness(ROUGH, 16, 16),
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
        data = _compressed(b"".join(each for _, each in packed))
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
    if is_exact and fineness.steps > ROUGH:
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
        "steps": fineness.steps,
        "exact": is_exact,
        "context": portrait.reads_context,
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
        _scaled(cells, fineness.steps),
        places.numpy().astype("<i4").tobytes() if wide else _pairs(places.numpy()),
        _scaled(weights),
        *(_scaled(each.weights) for each in portrait.cutouts),
        *(_scaled(each) for each in portrait.profiles.values()),
    ]
    return header, b"".join(parts)


def _coarser(cells: Tensor, dim: int, most: int) -> Tensor:
    """The greatest of neighbours: of n along a dimension, i goes to floor(i * most / n)."""
    count = cells.shape[dim]
    if count <= most:
        return cells
    starts = -(-np.arange(most) * count // most)
    return torch.from_numpy(np.maximum.reduceat(cells.numpy(), starts, axis=dim))


def _scaled(rows: Tensor, steps: int = FINEST) -> bytes:
    """Rows of numbers from 0 on, each in steps of its own greatest, which stands before them all.

    Of the greatest number the upper half of its 32 bits is kept, rounded up.
    """
    numbers = rows.double().clamp(min=0).numpy()
    greatest = numbers.max(axis=-1, keepdims=True).astype("<f4").view("<u4")
    halves = (greatest + 0xFFFF) >> 16
    shares = numbers / np.maximum((halves << 16).view("<f4"), np.finfo("<f4").tiny)
    if steps > ROUGH:
        return _pairs(halves) + _pairs((shares * steps).round())
    return _pairs(halves) + bytes((np.sqrt(shares) * steps).round().astype("u1").tobytes())


def _pairs(numbers: np.ndarray) -> bytes:
    """Numbers of two bytes: all low bytes, then all high ones, which zlib makes a third smaller."""
    pairs = np.ascontiguousarray(numbers.astype("<u2")).view(np.uint8).reshape(-1, 2)
    return bytes(pairs.T.tobytes())


def _compressed(data: bytes) -> bytes:
    """Filtered, which is zlib's word for numbers, whose repetitions of few bytes are by chance."""
    zipped = zlib.compressobj(strategy=zlib.Z_FILTERED)
    return zipped.compress(data) + zipped.flush()


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")
