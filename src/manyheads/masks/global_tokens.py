"""A few tokens see all and are seen by all."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Facts, Side
from manyheads.shapes import check_count, check_tensor


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Global(Mask):
    """Global tokens see every token and are seen by every token.

    Longformer is ``Window(w) | Global(0)``; under causality write
    ``Causal() & (Window(w) | Global(0))``, since ``&`` binds tighter than ``|``.

    Args:
        positions: A position, several, or a bool tensor (batch, length), True for global tokens.
        query_tags: bool (batch, q_len), the same for the queries where `positions` is a tensor
            and they are not the last of the keys.

    Raises:
        OptionError: If a position is negative or not an int.
        MaskError: If a tensor is not bool of two dimensions.

    Source:
        Beltagy et al. 2020 (arXiv:2004.05150), section 3.1.

    Example:
        >>> import manyheads as mh
        >>> print((mh.Window(2) | mh.Global(0)).draw(5))
        █████
        ███··
        ████·
        █·███
        █··██
    """

    positions: tuple[int, ...]
    tags: Tensor | None
    query_tags: Tensor | None

    def __init__(
        self,
        positions: "int | tuple[int, ...] | list[int] | Tensor",
        query_tags: Tensor | None = None,
    ) -> None:
        tags = positions if isinstance(positions, Tensor) else None
        for name, tensor in (("positions", tags), ("query_tags", query_tags)):
            if tensor is None:
                continue
            if check_tensor(name, tensor).dtype != torch.bool or tensor.ndim != 2:
                raise MaskError(
                    f"{name} must be ints, or bool (batch, length) with True for global tokens; "
                    f"got {tensor.dtype} of shape {tuple(tensor.shape)}. For positions write "
                    f"Global((0, 5))."
                )
        if tags is None:
            if query_tags is not None:
                raise MaskError(
                    f"query_tags must go with a tensor of positions; got positions={positions!r}. "
                    f"Positions tell of the queries too: leave query_tags out."
                )
            several = positions if isinstance(positions, tuple | list) else (positions,)
            places = {check_count("positions", place, least=0) for place in several}
        object.__setattr__(self, "positions", () if tags is not None else tuple(sorted(places)))
        object.__setattr__(self, "tags", tags)
        object.__setattr__(self, "query_tags", query_tags)

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return self.tags is None

    def settle(self, facts: Facts) -> Mask:
        if self.tags is None:
            return self
        return Tagged(facts.tokens("tag", self, self.tags, self.query_tags))

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return self._among(q.position) | self._among(kv.position)

    def _among(self, position: Tensor) -> Tensor:
        found = torch.zeros_like(position, dtype=torch.bool)
        for place in self.positions:
            found = found | (position == place)
        return found

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        if self.tags is not None:
            return True, False
        queries, keys = self._count(q_lo, q_hi), self._count(kv_lo, kv_hi)
        every = queries == q_hi - q_lo + 1 or keys == kv_hi - kv_lo + 1
        return queries > 0 or keys > 0, every

    def _count(self, low: int, high: int) -> int:
        places = self.positions
        if not places or high < places[0] or low > places[-1]:
            return 0
        return len([place for place in places if low <= place <= high])

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        queries = tuple(place - q_lo for place in self.positions if q_lo <= place <= q_hi)
        return queries, tuple(place - kv_lo for place in self.positions if kv_lo <= place <= kv_hi)

    def __repr__(self) -> str:
        if self.tags is not None:
            return f"Global(tags of {tuple(self.tags.shape)})"
        places = self.positions[0] if len(self.positions) == 1 else self.positions
        return f"Global({places})"


@dataclass(frozen=True, eq=False)
class Tagged(Mask):
    """The rule of a `Global` tensor: tagged tokens see all and are seen by all."""

    fact: str
    reads_positions = False

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return q[self.fact] | kv[self.fact]

    def mark_bounds(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> tuple[bool, bool]:
        return bool(q_hi or kv_hi), bool(q_lo or kv_lo)
