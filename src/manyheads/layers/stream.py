"""A stream of tokens on its way through layers: who of them is there, and who sees whom."""

import torch
from torch import Tensor

from manyheads.cache import Cache
from manyheads.errors import MaskError, PositionError
from manyheads.masks import Bound, Mask, Tokens, as_mask, settle
from manyheads.masks.base import Everyone
from manyheads.masks.bound import last_of
from manyheads.shapes import Positions


def settle_self(
    x: Tensor, mask: Mask | Bound | Tensor | None, positions: Positions, cache: Cache | None
) -> tuple[Tensor, Bound | None]:
    """Settle a mask for a stream that attends to itself, and empty the rows of absent tokens.

    Args:
        x: (batch, length, d_model).
        mask: Who may see whom among the tokens of x and of the cache; one that was settled by a
            stack of layers is taken as it is.
        positions: Where the tokens of x stand; None lets them follow those of the cache.
        cache: What went before; it is not changed.

    Returns:
        x with zeros for absent tokens, and the mask over the tokens of x alone; None where all see
        all.
    """
    batch, length = x.shape[:2]
    if isinstance(mask, Bound):
        _check_settled(mask, length, length, positions)
        return (x, mask) if mask.clean else (_without_absent(x, mask.kv), mask.cleaned())
    if mask is None and positions is None and (cache is None or cache.tokens is None):
        return x, None
    if positions is None and cache is not None:
        tokens = cache.follow(length, x.device)
    else:
        tokens = Tokens.given("positions", positions, batch, length, x.device)
    rule = Everyone() if mask is None else as_mask(mask)
    total = None if cache is None else cache.total(length)
    bound = settle(rule, batch, tokens, tokens, related=True, kv_total=total)
    return _without_absent(x, bound.kv), bound.cleaned()


def settle_cross(
    x: Tensor,
    context: Tensor | None,
    mask: Mask | Bound | Tensor | None,
    positions: Positions = None,
    context_positions: Positions = None,
    held: Tokens | None = None,
) -> tuple[Tensor, Tensor | None, Bound | None]:
    """Settle a mask for a stream that attends to a context, as `settle_self` does.

    Args:
        x: (batch, q_len, d_model).
        context: (batch, kv_len, width); None if its keys are held by a cache.
        mask: Who of x may see whom of the context.
        positions: Where the tokens of x stand.
        context_positions: Where those of the context stand.
        held: The tokens of the context that a cache holds.

    Returns:
        x and context with zeros for absent tokens, and the mask; None where all see all.
    """
    batch, q_len = x.shape[:2]
    if isinstance(mask, Bound):
        bound = mask
        _check_settled(mask, q_len, _length(context, held), positions, context_positions)
    else:
        plain = mask is None and positions is None and context_positions is None
        if plain and (held is None or held.absent is None):
            return x, context, None
        rule = Everyone() if mask is None else as_mask(mask)
        kv = held or Tokens.given(
            "context_positions", context_positions, batch, _length(context, held), x.device
        )
        q = _asking(positions, kv, rule, batch, q_len, x.device)
        bound = settle(rule, batch, q, kv, related=False)
    if bound.clean:
        return x, context, bound
    if context is not None:
        context = _without_absent(context, bound.kv)
    return _without_absent(x, bound.q), context, bound.cleaned()


def _asking(
    positions: Positions, kv: Tokens, rule: Mask, batch: int, q_len: int, device: torch.device
) -> Tokens:
    if positions is not None or not rule.reads_positions:
        return Tokens.given("positions", positions, batch, q_len, device)
    if kv.is_run:
        return last_of(kv, rule, batch, q_len)
    raise PositionError(
        f"positions must be given where the mask reads those of a context; got positions=None. "
        f"Say where the {q_len} tokens of x stand among the context's: positions=..."
    )


def _check_settled(mask: Bound, q_len: int, kv_len: int, *positions: Positions) -> None:
    if any(given is not None for given in positions):
        raise MaskError(
            "a settled mask must come alone; got positions beside it. It holds the positions that "
            "it was settled with."
        )
    if (mask.q.length, mask.kv.length) != (q_len, kv_len):
        raise MaskError(
            f"a settled mask must fit its call; got one for {mask.q.length} queries and "
            f"{mask.kv.length} keys, and q_len={q_len}, kv_len={kv_len}. Settle it anew; with a "
            f"cache it speaks of the new tokens alone."
        )


def _length(context: Tensor | None, held: Tokens | None) -> int:
    if held is not None:
        return held.length
    assert context is not None
    return context.shape[1]


def _without_absent(x: Tensor, tokens: Tokens) -> Tensor:
    return x if tokens.absent is None else x.masked_fill(tokens.absent[:, :, None], 0.0)
