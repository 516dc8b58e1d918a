"""Padding is seen by nobody."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.algebra import Everyone
from manyheads.masks.base import Mask
from manyheads.masks.facts import Facts, Side
from manyheads.shapes import check_tensor, holds_integers, values_are_cheap


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Padding(Mask):
    """Every query sees the real keys and none of the padding.

    It speaks of keys. A padded *query* still sees the real keys, as in torch; its output is yours
    to ignore. Absent keys may hold anything, NaN included: nothing of it reaches an output or a
    gradient. A model that pads on the left says so with positions below 0, which silence the
    queries too.

    Args:
        keep: bool (batch, kv_len), True where there is a real token.
        lengths: Instead of `keep`: int (batch,), how many tokens each sequence has, padding last.

    Raises:
        MaskError: If `keep` is not bool of two dimensions, or not exactly one form is given.

    Example:
        >>> import torch, manyheads as mh
        >>> print(mh.Padding(torch.tensor([[True, True, False]])).draw(2, 3))
        ██·
        ██·
        >>> mh.Padding(lengths=torch.tensor([2, 3]))
        Padding(lengths=[2, 3])
    """

    keep: Tensor | None
    lengths: Tensor | None

    reads_positions = False

    def __init__(
        self, keep: Tensor | None = None, *, lengths: Tensor | Sequence[int] | None = None
    ) -> None:
        if (keep is None) == (lengths is None):
            raise MaskError(
                "Padding must have either keep or lengths; got "
                f"{'neither' if keep is None else 'both'}. Write Padding(keep) with a bool tensor "
                "(batch, kv_len), or Padding(lengths=torch.tensor([...]))."
            )
        if keep is not None:
            _check_keep(check_tensor("keep", keep))
        else:
            lengths = _checked_lengths(lengths)
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "lengths", lengths)

    def settle(self, facts: Facts) -> Mask:
        keep = self.keep
        if keep is None:
            lengths = self.lengths.to(facts.kv.device)  # type: ignore[union-attr]
            if values_are_cheap(lengths) and lengths.numel() and lengths.max() > facts.kv.length:
                raise MaskError(
                    f"lengths must be at most kv_len={facts.kv.length}; got "
                    f"lengths={lengths.tolist()}. Count the real tokens of each sequence."
                )
            keep = torch.arange(facts.kv.length, device=lengths.device) < lengths[:, None]
        return Present(facts.keys("padding", self, ~keep))

    def __repr__(self) -> str:
        if self.lengths is not None and self.lengths.numel() <= 8:
            return f"Padding(lengths={self.lengths.tolist()})"
        shape = self.keep.shape if self.keep is not None else self.lengths.shape  # type: ignore
        return f"Padding({'keep' if self.lengths is None else 'lengths'} of {tuple(shape)})"


@dataclass(frozen=True, eq=False)
class Present(Mask):
    """The rule of `Padding`: keys that no fact calls padding are seen."""

    fact: str
    reads_positions = False

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return ~kv[self.fact]

    def absent(self, shown: bool = False) -> frozenset[str]:
        return frozenset() if shown else frozenset((self.fact,))

    def among(self, facts: frozenset[str]) -> Mask:
        return Everyone() if self.fact in facts else self


def _check_keep(keep: Tensor) -> None:
    if keep.dtype != torch.bool:
        raise MaskError(
            f"keep must be bool, True where there is a real token; got keep={keep.dtype}. Convert "
            f"it with .bool(), or with from_attention_mask or from_key_padding_mask, whose names "
            f"say what 1 means."
        )
    if keep.ndim != 2:
        raise MaskError(
            f"keep must be (batch, kv_len); got shape {tuple(keep.shape)}. Every query sees the "
            f"same keys of its sequence; for more, give a bool mask (batch, heads, q_len, kv_len)."
        )


def _checked_lengths(given: Any) -> Tensor:
    try:
        lengths = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise MaskError(
            f"lengths must be int (batch,); got lengths={given!r}. Give each sequence's number of "
            f"real tokens."
        ) from None
    if not holds_integers(lengths) or lengths.ndim != 1:
        raise MaskError(
            f"lengths must be int (batch,); got {lengths.dtype} of shape {tuple(lengths.shape)}. "
            f"Give each sequence's number of real tokens; a bool tensor goes to Padding(keep)."
        )
    if values_are_cheap(lengths) and lengths.numel() and lengths.min() < 0:
        raise MaskError(
            f"lengths must be 0 or more; got lengths={lengths.tolist()}. They count tokens."
        )
    return lengths
