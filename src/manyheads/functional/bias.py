"""What is added to the scores: a tensor, or an object that reads positions."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.errors import DeviceError, DTypeError, ShapeError
from manyheads.functional.precision import full_precision
from manyheads.masks import Bound
from manyheads.positions import Bias
from manyheads.positions.bias import Folded, Place


class PlacedBias(NamedTuple):
    """A bias that reads positions, and the positions that it reads in one call.

    Args:
        rule: The bias.
        q_pos: The first position of a run of queries, or integers (q_len,) or (batch, q_len).
        kv_pos: Where the keys stand, likewise.
    """

    rule: Bias
    q_pos: Place
    kv_pos: Place

    def write(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """The bias of each pair, of four dimensions, in fp32 at least."""
        if not (q.shape[2] and k.shape[2]):
            return q.new_zeros(1, 1, q.shape[2], k.shape[2])  # there is no pair to ask about
        with full_precision(q.device):
            bias = self.rule(q, k, self.q_pos, self.kv_pos, scale=scale)
        return check_bias(bias, q, k)

    def part(
        self, sequences: slice, queries: slice, keys: Sequence[tuple[int, int]]
    ) -> "PlacedBias":
        """The bias of some queries and of some runs of keys, (first, one after the last)."""
        q_pos, kv_pos = self.q_pos, self.kv_pos
        if isinstance(q_pos, Tensor):
            q_pos = _of(q_pos, sequences)[..., queries]
        else:
            q_pos = q_pos + queries.start
        if isinstance(kv_pos, Tensor):
            kv_pos = _of(kv_pos, sequences)
            kv_pos = torch.cat([kv_pos[..., start:stop] for start, stop in keys], dim=-1)
        elif len(keys) == 1:
            kv_pos = kv_pos + keys[0][0]
        else:
            kv_pos = torch.cat([torch.arange(*run) for run in keys]) + kv_pos
        return PlacedBias(self.rule, q_pos, kv_pos)

    def fold(self, q: Tensor, k: Tensor, mask: Bound | None, scale: float) -> Folded | None:
        """The bias as further features; None where there is no such form for the pairs seen."""
        if not self._meets_the_past_only(k.shape[2], mask):
            return None
        return self.rule.fold(q, k, self.q_pos, self.kv_pos, scale=scale)

    def _meets_the_past_only(self, kv_len: int, mask: Bound | None) -> bool:
        if mask is not None and mask.rule.hides_future():
            return True
        q_pos, kv_pos = self.q_pos, self.kv_pos
        runs = not isinstance(q_pos, Tensor) and not isinstance(kv_pos, Tensor)
        return runs and bool(kv_pos + kv_len - 1 <= q_pos)

    def needs_grad(self, q: Tensor, k: Tensor) -> bool:
        """Whether gradients will be asked of what is added."""
        learns = any(parameter.requires_grad for parameter in self.rule.parameters())
        return learns or (self.rule.reads_content and (q.requires_grad or k.requires_grad))


def _of(positions: Tensor, sequences: slice) -> Tensor:
    several = positions.ndim == 2 and positions.shape[0] > 1
    return positions[sequences] if several else positions


def place_bias(bias: Bias, q: Tensor, k: Tensor, bound: Bound | None) -> PlacedBias:
    """The bias at the positions of a call: those of its mask, or the queries as the last keys."""
    if bias.num_heads != q.shape[1]:
        raise ShapeError(
            f"bias must serve the {q.shape[1]} heads of q; got bias.num_heads={bias.num_heads}. "
            f"Write {type(bias).__name__}({q.shape[1]}, ...)."
        )
    for parameter in bias.parameters():
        _check_device(parameter, q)
    if bound is None:
        return PlacedBias(bias, k.shape[2] - q.shape[2], 0)
    return PlacedBias(bias, bound.q.position, bound.kv.position)


def check_bias(bias: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The bias with its four dimensions, if it fits the pairs of q and k."""
    if not isinstance(bias, Tensor) or not bias.dtype.is_floating_point:
        kind = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise DTypeError(
            f"bias must be a floating-point tensor, or an object such as ALiBi(8); got "
            f"bias={kind}. It is added to the scores; what says who may see whom is a mask=."
        )
    _check_device(bias, q)
    if bias.ndim == 2:
        bias = bias[None, None]
    whole = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    fits = bias.ndim == 4 and all(
        size in (1, full) for size, full in zip(bias.shape, whole, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"bias must be (q_len, kv_len) or (batch, heads, q_len, kv_len) = {whole}, 1 where it "
            f"does not change; got shape {tuple(bias.shape)}. Say which axis is meant with "
            f"bias[None] or bias[:, None]."
        )
    return bias


def _check_device(bias: Tensor, q: Tensor) -> None:
    if bias.device != q.device:
        raise DeviceError(
            f"bias must be on the device of q, k and v, {q.device}; got bias={bias.device}. "
            f"Move it with .to(q.device)."
        )
