"""Portraits as few bytes: what the page unpacks."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


FINENESSES = (
    Fineness(16, 128, 512), Fineness(8, 128, 512), Fineness(8, 96, 256), Fineness(8, 64, 128),
    Fineness(8, 48, 64), Fineness(8, 32, 32), Fineness(8, 16, 16),
)  # fmt: skip


def pack(portraits: Sequence[Portrait], room: int) -> tuple[list[dict[str, Any]], bytes]:
    """What is in the bytes, and the bytes: as fine as there is room for.

    Raises:
        OptionError: If not even the coarsest has room.
    """
    for fineness in FINENESSES:
        packed = [_pack(portrait, fineness) for portrait in portraits]
        data = zlib.compress(b"".join(each for _, each in packed))
        if len(data) <= room:
            return [header for header, _ in packed], data
    raise OptionError(
        f"portraits must fit into the page; got {len(portraits)} layers, of which the coarsest "
        f"picture takes {len(data)} bytes where {room} are left. Watch fewer layers or heads."
    )


def _pack(portrait: Portrait, fineness: Fineness) -> tuple[dict[str, Any], bytes]:
    cells, is_exact = portrait.cells, portrait.is_exact
    if max(cells.shape[1:]) > fineness.side:
        height, width = (min(side, fineness.side) for side in cells.shape[1:])
        cells, is_exact = torch.nn.functional.adaptive_max_pool2d(cells, (height, width)), False
    step = -(-len(portrait.rows) // fineness.rows)
    keys, weights = portrait.top_keys[:, ::step], portrait.top_weights[:, ::step]
    wide = portrait.lengths[1] > 0xFFFF
    header = {
        "layer": portrait.layer,
        "heads": len(cells),
        "lengths": portrait.lengths,
        "height": cells.shape[1],
        "width": cells.shape[2],
        "bits": fineness.bits,
        "exact": is_exact,
        "rows": portrait.rows[::step].tolist(),
        "top": keys.shape[2],
        "keyBytes": 4 if wide else 2,
        "profiles": list(portrait.profiles),
        "bins": next(iter(portrait.profiles.values())).shape[1],
        "does": [head.does for head in portrait.summaries],
        "numbers": {
            name: [_short(getattr(head, name)) for head in portrait.summaries] for name in MEASURES
        },
    }
    parts = [
        _cells(cells, fineness.bits),
        # A key that is not there is the number after the last.
        _whole(keys.where(keys >= 0, portrait.lengths[1]), torch.int32 if wide else torch.uint16),
        _whole(weights.clamp(0, 1) * 0xFFFF, torch.uint16),
        *(_floats(each) for each in portrait.profiles.values()),
    ]
    return header, b"".join(parts)


def _cells(cells: Tensor, bits: int) -> bytes:
    if bits == 8:
        return _whole(cells.clamp(0, 1).sqrt() * 255, torch.uint8)
    return _whole(cells.clamp(0, 1) * 0xFFFF, torch.uint16)


def _whole(numbers: Tensor, dtype: torch.dtype) -> bytes:
    array = numbers.double().round().to(torch.int64).numpy()
    name = {torch.uint8: "<u1", torch.uint16: "<u2", torch.int32: "<i4"}[dtype]
    return bytes(array.astype(name).tobytes())


def _floats(numbers: Tensor) -> bytes:
    return bytes(numbers.float().numpy().astype("<f4").tobytes())


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")
