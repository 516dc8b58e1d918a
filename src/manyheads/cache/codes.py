"""Numbers of a few bits: the codes that a quantised cache keeps, and what they mean."""

from typing import NamedTuple

import torch
from torch import Tensor

STEP_DTYPE = torch.bfloat16
"""Of middles and steps: it reaches as far as fp32, and the codes make good what it rounds."""


class Codes(NamedTuple):
    """What stands for some numbers: ``middle + step * (code - half)``.

    Args:
        packed: uint8 (..., width), two codes in a byte where they have four bits.
        middle: Of each group of numbers that were rounded together.
        step: From one code to the next; 0 where all numbers of a group are alike.
    """

    packed: Tensor
    middle: Tensor
    step: Tensor


def encode(x: Tensor, bits: int, axis: int, absent: Tensor | None = None) -> Codes:
    """Round numbers that share a middle and a step along an axis.

    The step is widened until the rounded middle and step reach every number, so no number is off
    by more than half a step, however far an outlier lies.

    Args:
        x: (..., length, width), floats.
        bits: 8 or 4.
        axis: -2 for numbers of a channel, -1 for numbers of a token.
        absent: bool, broadcastable to x: numbers that nobody will read, whatever they are.
    """
    levels = 2**bits - 1
    x = x.float()
    low, high = _range(x, axis, absent)
    # Halves first: their sum cannot overflow.
    middle = (low / 2 + high / 2).to(STEP_DTYPE)
    reach = torch.maximum(high - middle.float(), middle.float() - low)
    step = (reach * (2.0 / levels) * (1 + 2.0**-7)).to(STEP_DTYPE)
    unit = torch.where(step > 0, step.float(), 1.0)
    codes = (x - middle.float()) / unit + levels / 2
    codes = codes.round().clamp(0, levels).nan_to_num(0.0).to(torch.uint8)
    return Codes(pack(codes, bits), middle, step)


def _range(x: Tensor, axis: int, absent: Tensor | None) -> tuple[Tensor, Tensor]:
    if not x.shape[axis]:
        return x, x  # Of no numbers, which have no range: a cache of latents has no values.
    if absent is None:
        return x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    low = x.masked_fill(absent, torch.inf).amin(axis, keepdim=True)
    high = x.masked_fill(absent, -torch.inf).amax(axis, keepdim=True)
    nobody = low > high
    return low.masked_fill(nobody, 0.0), high.masked_fill(nobody, 0.0)


def decode(codes: Codes, bits: int, width: int, dtype: torch.dtype) -> Tensor:
    """The numbers that codes stand for, (..., length, width)."""
    whole = unpack(codes.packed, bits, width).float() - (2**bits - 1) / 2
    return (codes.middle.float() + codes.step.float() * whole).to(dtype)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes (..., width) in bytes, (..., width) or (..., width / 2, rounded up)."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor, bits: int, width: int) -> Tensor:
    """The codes that were packed."""
    if bits == 8:
        return packed
    both = torch.stack((packed & 15, packed >> 4), dim=-1)
    return both.flatten(-2)[..., :width]
