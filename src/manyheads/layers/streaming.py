"""Rotary positions that are counted in a cache whose first tokens never leave."""

import torch
from torch import Tensor

from manyheads.cache import RingCache
from manyheads.errors import PositionError
from manyheads.masks import Tokens
from manyheads.positions import Rotary
from manyheads.shapes import values_are_cheap


def check_counting(rotary: Rotary, coordinates: Tensor | None) -> None:
    """Refuse a rotary whose turns cannot be counted in a cache."""
    if rotary.depends_on_length or coordinates is not None:
        got = "coordinates" if coordinates is not None else f"scaling={rotary.scaling}"
        raise PositionError(
            f"a rotary must turn by positions alone where a RingCache counts them (keep_first > "
            f"0); got {got}. Take a RingCache without keep_first, or another scaling."
        )


def count_in_cache(
    rotary: Rotary,
    cache: RingCache,
    q: Tensor,
    q_turned: Tensor,
    k: Tensor,
    q_tokens: Tokens,
    kv: Tokens,
) -> tuple[Tensor, Tensor]:
    """Let queries far from the first tokens see them as just before their window.

    Counted in the cache, a query stands at most at ``keep_first + size - 1``. Its distance to the
    keys of the window is what it is in the text; only that to the first tokens is shorter.

    Args:
        rotary: Turns by positions.
        cache: Tells how many tokens it keeps.
        q: Queries before their turn.
        q_turned: Queries after their turn by positions in the text.
        k: All keys that are shown, turned by positions in the text.
        q_tokens: What is known of the queries.
        kv: What is known of the keys.

    Returns:
        Queries and keys; twice as wide where the queries of one call need different distances.

    Source:
        Xiao et al. 2023, section 3.2 (arXiv:2309.17453).
    """
    reach = cache.keep_first + cache.size - 1
    places = _rows(q_tokens.positions().to(q.device))
    beyond = (places - reach).clamp(min=0)
    if not q.shape[2] or (values_are_cheap(beyond) and not beyond.any()):
        return q_turned, k
    positions = _rows(kv.positions().to(k.device))
    first = (positions >= 0) & (positions < cache.keep_first)
    if q.shape[2] == 1:
        # The query stays, and the first keys move up to it.
        return q_turned, rotary(k, torch.where(first, beyond, 0)) / rotary.gain
    # One product of wider heads: the keys of the window meet the query where it stands in the
    # text, the first ones meet it where it stands in the cache.
    counted = rotary(q, places.clamp(max=reach))
    first = first[:, None, :, None]
    wide = torch.cat((k.masked_fill(first, 0.0), k.masked_fill(~first, 0.0)), dim=-1)
    return torch.cat((q_turned, counted), dim=-1), wide


def _rows(positions: Tensor) -> Tensor:
    return positions[None] if positions.ndim == 1 else positions
