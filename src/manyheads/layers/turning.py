"""Queries and keys of a layer, turned by a rotary where they stand, and kept by a cache."""

from torch import Tensor

from manyheads.cache import Cache, RingCache
from manyheads.errors import PositionError
from manyheads.layers.streaming import check_counting, count_in_cache
from manyheads.masks import Bound, Tokens
from manyheads.positions import Rotary
from manyheads.shapes import Positions


def turn_new(
    rotary: Rotary | None,
    q: Tensor,
    k: Tensor,
    bound: Bound | None,
    cache: Cache | None,
    coordinates: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Queries and keys of the tokens of a call, turned unless the turn changes as the text grows.

    Args:
        rotary: Turns them, if there is one.
        q: Queries.
        k: Keys of the same tokens.
        bound: Tells where they stand; None: from 0 on.
        cache: Will keep the keys.
        coordinates: Where they stand along the axes of the rotary.
    """
    if rotary is None:
        if coordinates is not None:
            raise PositionError(
                "coordinates must go to a layer with a rotary; got coordinates and rotary=None. "
                "Build the layer with rotary=Rotary(head_dim, axes=...)."
            )
        return q, k
    if _counts(cache):
        check_counting(rotary, coordinates)
    if rotary.depends_on_length:
        return q, k
    places = None if bound is None else bound.q.position
    turn = rotary.at(places, coordinates=coordinates, like=q)
    return turn(q), turn(k)


def append(
    cache: Cache, k: Tensor, v: Tensor, bound: Bound | None
) -> tuple[Tensor, Tensor, Bound | None]:
    """All keys and values of a cache after this call's, and who may see whom of them."""
    tokens = cache.follow(k.shape[2], k.device) if bound is None else bound.kv
    k, v, tokens = cache.append(k, v, tokens)
    return k, v, None if bound is None else bound.with_keys(tokens)


def turn_all(
    rotary: Rotary,
    unturned: Tensor,
    q: Tensor,
    k: Tensor,
    bound: Bound | None,
    cache: Cache | None,
) -> tuple[Tensor, Tensor]:
    """What is left to turn once all keys are there: of a text that has grown or lost its middle.

    Args:
        rotary: Turns them.
        unturned: Queries before any turn.
        q: Queries as `turn_new` gave them.
        k: All keys.
        bound: Tells where they stand; None: from 0 on.
        cache: Keeps the keys.
    """
    if rotary.depends_on_length:
        # Keys are cached unturned, for their turn changes as the text grows.
        return _turned(rotary, q, k, bound)
    if isinstance(cache, RingCache) and _counts(cache):
        asking = Tokens(q.shape[2], 0, device=q.device) if bound is None else bound.q
        kv = Tokens(k.shape[2], 0, device=k.device) if bound is None else bound.kv
        return count_in_cache(rotary, cache, unturned, q, k, asking, kv)
    return q, k


def _counts(cache: Cache | None) -> bool:
    return isinstance(cache, RingCache) and cache.keep_first > 0


def reach_of(rotary: Rotary, k: Tensor, kv: Tokens | None) -> int | Tensor | None:
    """The tokens up to the last key, if the rotary asks."""
    if not rotary.depends_on_length:
        return None
    return k.shape[2] if kv is None else kv.next_position()


def _turned(rotary: Rotary, q: Tensor, k: Tensor, bound: Bound | None) -> tuple[Tensor, Tensor]:
    kv = None if bound is None else bound.kv
    reach = reach_of(rotary, k, kv)
    q = rotary(q, 0 if bound is None else bound.q.position, length=reach)
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
