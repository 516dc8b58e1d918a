"""Queries and keys of a layer, turned by a rotary where they stand."""

from torch import Tensor

from manyheads.errors import PositionError
from manyheads.masks import Tokens
from manyheads.positions import Rotary
from manyheads.shapes import Positions


def reach_of(rotary: Rotary, k: Tensor, kv: Tokens | None) -> int | Tensor | None:
    """The tokens up to the last key, if the rotary asks."""
    if not rotary.depends_on_length:
        return None
    return k.shape[2] if kv is None else kv.next_position()


def turned(
    rotary: Rotary, q: Tensor, k: Tensor, q_tokens: Tokens | None, kv: Tokens | None
) -> tuple[Tensor, Tensor]:
    """Queries and all keys up to now, turned for a text that reaches to the last key."""
    reach = reach_of(rotary, k, kv)
    places = 0 if q_tokens is None else q_tokens.position
    q = rotary(q, places, length=reach)
    return q, rotary(k, 0 if kv is None else kv.position, length=reach)


def places_among(kv: Tokens | None, positions: Positions, q_len: int, kv_len: int) -> Positions:
    """Where the queries stand among keys of a context."""
    first = 0 if kv is None else kv.position
    if positions is not None:
        return positions
    if isinstance(first, Tensor) or q_len != kv_len:
        raise PositionError(
            f"positions must be given where rotary meets a context of another length or of its own "
            f"positions; got none, q_len={q_len}, kv_len={kv_len}. Write positions=0 if x begins "
            f"with the context, positions={kv_len - q_len} if they end together."
        )
    return first
