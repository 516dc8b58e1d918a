"""A stream of tokens on its way through layers: who of them is there, and who sees whom."""

from torch import Tensor

from manyheads.cache import Cache
from manyheads.masks import Bound, Mask, Tokens, as_mask, settle
from manyheads.masks.base import Everyone
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
    if isinstance(mask, Bound):
        return x, mask
    if mask is None and positions is None and (cache is None or cache.tokens is None):
        return x, None
    batch, length = x.shape[:2]
    if positions is None and cache is not None:
        tokens = cache.follow(length, x.device)
    else:
        tokens = Tokens.given("positions", positions, batch, length, x.device)
    rule = Everyone() if mask is None else as_mask(mask)
    total = None if cache is None else cache.length + length
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
    if isinstance(mask, Bound):
        return x, context, mask
    plain = mask is None and positions is None and context_positions is None
    if plain and (held is None or held.absent is None):
        return x, context, None
    batch, q_len = x.shape[:2]
    if held is not None:
        kv = held
    else:
        assert context is not None
        length = context.shape[1]
        kv = Tokens.given("context_positions", context_positions, batch, length, x.device)
    rule = Everyone() if mask is None else as_mask(mask)
    if positions is None and context_positions is None and kv.is_run and rule.reads_positions:
        positions = kv.position + kv.length - q_len  # the last of the context, as in `attention`
    q = Tokens.given("positions", positions, batch, q_len, x.device)
    bound = settle(rule, batch, q, kv, related=False)
    x = _without_absent(x, bound.q)
    if context is not None:
        context = _without_absent(context, bound.kv)
    return x, context, bound.cleaned()


def _without_absent(x: Tensor, tokens: Tokens) -> Tensor:
    return x if tokens.absent is None else x.masked_fill(tokens.absent[:, :, None], 0.0)
