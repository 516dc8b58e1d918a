"""A stream of tokens on its way through layers: who of them is there, and who sees whom."""

import torch
from torch import Tensor

from manyheads.cache import Cache
from manyheads.errors import PositionError
from manyheads.masks import Bound, Mask, Tokens, as_mask, settle
from manyheads.masks.algebra import Everyone
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
        mask.check_fits(batch, length, length, positions)
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
    *,
    by_position: bool = False,
    absent: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Bound | None]:
    """Settle a mask for a stream that attends to a context, as `settle_self` does.

    Args:
        x: (batch, q_len, d_model).
        context: (batch, kv_len, width); None if its keys are held by a cache.
        mask: Who of x may see whom of the context.
        positions: Where the tokens of x stand.
        context_positions: Where those of the context stand.
        held: The tokens of the context that a cache holds.
        by_position: Whether more than the mask reads positions: a bias does.
        absent: Where x is known to hold no token, bool (batch or 1, q_len); it asks nobody.

    Returns:
        x and context with zeros for absent tokens, and the mask; None where all see all.
    """
    batch, q_len = x.shape[:2]
    if isinstance(mask, Bound):
        kv_len = _length(context, held)
        mask.check_fits(batch, q_len, kv_len, positions, context_positions)
        bound = mask
        if absent is not None:
            bound = Bound(mask.rule, mask.q.with_absent(absent), mask.kv, mask.pairs)
    else:
        plain = mask is None and positions is None and context_positions is None
        if plain and absent is None and (held is None or held.absent is None):
            return x, context, None
        rule = Everyone() if mask is None else as_mask(mask)
        kv = held or Tokens.given(
            "context_positions", context_positions, batch, _length(context, held), x.device
        )
        if positions is None and by_position and kv.is_run:
            assert not isinstance(kv.position, Tensor)
            positions = kv.position + kv.length - q_len  # the last of the context
        q = _asking(positions, kv, rule, batch, q_len, x.device).with_absent(absent)
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


def _length(context: Tensor | None, held: Tokens | None) -> int:
    if held is not None:
        return held.length
    assert context is not None
    return context.shape[1]


def _without_absent(x: Tensor, tokens: Tokens) -> Tensor:
    if tokens.absent is None:
        return x
    # One pass, where masked_fill copies first: half the time, a third with the backward.
    return torch.where(tokens.absent[:, :, None], 0.0, x)


def masked_like(value: Tensor, bound: Bound | None) -> Tensor:
    """A value stream without what its absent tokens hold."""
    if bound is None or bound.kv.absent is None:
        return value
    return torch.where(bound.kv.absent[:, :, None], 0.0, value)
