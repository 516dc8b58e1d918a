"""The turn of some positions: made once, given to queries and keys, kept for the next call."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.positions.angles import angle_dtype, cos_sin, cos_sin_of
from manyheads.positions.given import as_tensor, is_plain_call
from manyheads.positions.rotation import (
    Layout,
    Pairs,
    check_heads,
    check_tables,
    lay_out,
    rotate_by_formula,
    rotate_by_layout,
)


@dataclass(frozen=True, eq=False)
class Turn:
    """The turn of some tokens: give it their queries or keys.

    Attributes:
        cos: Cosines of the angles, (length, pairs) or (batch, length, pairs). Read them only: other
            calls may share them.
        sin: Sines of the angles, likewise.
        pairs: Which features make a pair.
        layout: The same as the fast paths read them, for features of ``dtype``; empty in a trace.
        dtype: The dtype of the features that it was made for. Others are served, less fast.
    """

    cos: Float[Tensor, "*batch length pairs"]
    sin: Float[Tensor, "*batch length pairs"]
    pairs: Pairs
    layout: Layout
    dtype: torch.dtype

    def __call__(
        self, x: Float[Tensor, "batch heads length head_dim"]
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """``x`` turned, in its own dtype; features beyond those of the pairs are left alone."""
        check_heads(x)
        check_tables(x, self.cos, self.sin)
        return self.rotate(x)

    def rotate(self, x: Tensor) -> Tensor:
        """The same, for an ``x`` that is known to fit."""
        if x.dtype == self.dtype and self.layout and is_plain_call(x):
            return rotate_by_layout(x, self.layout)
        return rotate_by_formula(x, self.cos, self.sin, pairs=self.pairs)

    def rows(self, first: int, length: int) -> "Turn":
        """The turn of ``length`` of the tokens."""
        tables = (t.narrow(-2, first, length) for t in (self.cos, self.sin, *self.layout))
        cos, sin, *layout = tables
        return Turn(cos, sin, self.pairs, tuple(layout), self.dtype)


def make_turn(
    frequencies: tuple[float, ...] | Tensor,
    positions: int | Tensor,
    *,
    pairs: Pairs,
    like: Tensor,
    gain: float = 1.0,
) -> Turn:
    """The turn of positions, for features like these.

    Args:
        frequencies: Radians a token, one for each pair; or a row of them for each sequence.
        positions: The first of a run, or one number a token.
        pairs: Which features make a pair.
        like: Heads of the length, dtype and device of what will be turned.
        gain: Multiplies what is turned.
    """
    length, plain = like.shape[2], is_plain_call(like)
    if (
        plain
        and like.is_cpu
        and not isinstance(positions, Tensor)
        and isinstance(frequencies, tuple)
        and length * len(frequencies) <= _KEPT_SIZE
    ):
        return _kept_run(frequencies, pairs, gain, positions, length, like.dtype)
    numbers = as_tensor(positions, length=length, device=like.device)
    tables = cos_sin(frequencies, numbers, angle_dtype(like.dtype))
    return _laid_out(*tables, pairs, gain, like.dtype, for_layout=plain)


def turn_to(
    coordinates: Tensor,
    frequencies: tuple[float, ...],
    axes: tuple[int, ...],
    *,
    pairs: Pairs,
    like: Tensor,
    gain: float = 1.0,
) -> Turn:
    """The turn of coordinates, (length, axes) or (batch, length, axes); see `make_turn`."""
    tables = cos_sin_of(frequencies, coordinates, axes, angle_dtype(like.dtype))
    return _laid_out(*tables, pairs, gain, like.dtype, for_layout=is_plain_call(like))


def _laid_out(
    cos: Tensor, sin: Tensor, pairs: Pairs, gain: float, dtype: torch.dtype, *, for_layout: bool
) -> Turn:
    if gain != 1.0:
        cos, sin = cos * gain, sin * gain
    layout = lay_out(cos, sin, pairs=pairs, dtype=dtype) if for_layout else ()
    return Turn(cos, sin, pairs, layout, dtype)


_KEPT_SIZE = 2**18
"""Angles up to which a run is kept for the next call: 8,192 tokens of 32 pairs, 6 MB in float32."""

_SHORT = 64
"""Tokens up to which a run is cut from a kept, longer one."""


# Sines cost more than the rotation itself, and every layer and step asks for the same ones. Keyed
# by all that decides them. On the CPU only: elsewhere a kept tensor could outlive its stream.
@functools.lru_cache(maxsize=8)
def _kept_run(
    frequencies: tuple[float, ...],
    pairs: Pairs,
    gain: float,
    start: int,
    length: int,
    dtype: torch.dtype,
) -> Turn:
    if length <= _SHORT:  # Decoding asks for the next token each time.
        first = start - start % _SHORT
        longer = _kept_run(frequencies, pairs, gain, first, 2 * _SHORT + 1, dtype)
        return longer.rows(start - first, length)
    # Ordinary tensors, for a training step may use what a call under inference_mode made first.
    with torch.inference_mode(False), torch.no_grad():
        positions = as_tensor(start, length=length, device=torch.device("cpu"))
        tables = cos_sin(frequencies, positions, angle_dtype(dtype))
        return _laid_out(*tables, pairs, gain, dtype, for_layout=True)
