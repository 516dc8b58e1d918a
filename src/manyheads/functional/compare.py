"""An approximation beside exact attention: how far off, and from which length on it pays."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional.comparison import Comparison, Cost, wins_from
from manyheads.functional.cost import peak_bytes, seconds_of
from manyheads.masks import Mask
from manyheads.masks.algebra import And, Everyone, both
from manyheads.shapes import check_count

Function = Callable[[Tensor, Tensor, Tensor, Mask | None], Tensor]
"""Takes q, k, v and a mask, and gives an output."""

MOST_WEIGHTS = 2**24
# Lengths double from the first; no further one is begun once so many seconds are spent.
FIRST_LENGTH, SECONDS = 64, 10.0


def compare(
    exact: Function,
    approximate: Function,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    *,
    lengths: Sequence[int] | None = None,
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Measure how far an approximation is off, and from which length on it is faster here.

    The errors are those of the given tensors. Times and memory are those of random tensors with
    their heads and widths, at each length, forward only; where the mask holds tensors, as `Padding`
    does, they are taken without that part.

    Args:
        exact: A function of (q, k, v, mask), such as `attention`.
        approximate: Likewise: ``functools.partial(nystrom_attention, landmarks=32)``. If it gets
            k itself as q (``compare(..., q, q, v)``), so it does in what is timed.
        q: Queries.
        k: Keys.
        v: Values.
        mask: Who may see whom.
        lengths: To be timed, in tokens; () for none. None doubles from 64 for about ten seconds.
        names: What to call the two; None takes the functions' own.

    Returns:
        A `Comparison`; print it.

    Raises:
        ShapeError: If the two outputs differ in shape.
        OptionError: If lengths are not counts that grow.

    Example:
        >>> import torch, manyheads as mh
        >>> from functools import partial
        >>> q, k, v = torch.randn(3, 1, 2, 64, 16)
        >>> near = partial(mh.nystrom_attention, landmarks=16)
        >>> found = mh.compare(mh.attention, near, q, k, v, lengths=())
        >>> found.approximate, 0 < found.output_error < 1
        ('nystrom_attention', True)
    """
    lengths = None if lengths is None else _checked(lengths)
    with torch.no_grad(), _same_draws():
        right = exact(q, k, v, mask)
    with torch.no_grad(), _same_draws():
        found = approximate(q, k, v, mask)
    if right.shape != found.shape:
        raise ShapeError(
            f"the two outputs must have one shape; got exact={tuple(right.shape)}, approximate="
            f"{tuple(found.shape)}. Give functions that answer the same call."
        )
    difference, size = (found - right).double(), right.double().norm().item()
    norm = difference.norm().item()
    costs = tuple(_costs(exact, approximate, q, k, v, _without_tensors(mask), lengths))
    return Comparison(
        *((_name(exact), _name(approximate)) if names is None else names),
        length=(q.shape[2], k.shape[2]),
        output_error=norm / size if size else norm,
        largest_error=difference.abs().max().item() if difference.numel() else 0.0,
        weight_error=_weight_error((exact, right), (approximate, found), q, k, v, mask),
        costs=costs,
        wins_from=wins_from(costs),
    )


def weights_of(
    function: Function, output: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor | None:
    """The weights of any function that mixes values: its output for the identity as values.

    Args:
        function: Of (q, k, v, mask).
        output: What it gave for v.
        q: Queries.
        k: Keys.
        v: Values.
        mask: Who may see whom.

    Returns:
        (batch, num_heads, q_len, kv_len), or None if these weights times v are not the output: the
        function is not linear in the values.

    Example:
        >>> from manyheads.functional import linear_attention
        >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2), torch.randn(1, 1, 4, 2)
        >>> weights_of(linear_attention, linear_attention(q, k, v), q, k, v)
        tensor([[[[0.2500, 0.2500, 0.2500, 0.2500]]]])
    """
    kv_len = k.shape[2]
    identity = torch.eye(kv_len, dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
    with torch.no_grad(), _same_draws():
        weights = function(q, k, identity, mask)
        v = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
        again = weights.double() @ torch.nan_to_num(v.double(), 0.0, 0.0, 0.0)
    scale = max(1.0, output.abs().max().item()) if output.numel() else 1.0
    tolerance = 8 * torch.finfo(output.dtype).eps ** 0.75 * scale
    near = torch.allclose(again, output.double(), rtol=0, atol=tolerance)
    return weights if near else None


def _weight_error(
    exact: tuple[Function, Tensor],
    approximate: tuple[Function, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
) -> float | None:
    count = math.prod(q.shape[:3]) * k.shape[2]
    if not 0 < count <= MOST_WEIGHTS:
        return None
    right = weights_of(*exact, q, k, v, mask)
    found = weights_of(*approximate, q, k, v, mask)
    if right is None or found is None:
        return None
    return (found - right).double().abs().sum(dim=-1).mean().item() / 2


def _costs(
    exact: Function,
    approximate: Function,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    lengths: Sequence[int] | None,
) -> Iterator[Cost]:
    if lengths is None:
        # Torch's profiler takes seconds to load, once; the lengths shall not pay for it.
        peak_bytes(lambda: None, q.device)
    start = time.perf_counter()
    for length in itertools.count() if lengths is None else lengths:
        if lengths is None:
            length = FIRST_LENGTH * 2**length
            if time.perf_counter() - start > SECONDS:
                return
        made = _random(q, k, v, length)
        calls = [partial(function, *made, mask) for function in (exact, approximate)]
        with torch.no_grad():
            fast, near = seconds_of(calls)
            held, near_held = (peak_bytes(call, q.device) for call in calls)
        yield Cost(length, fast, near, held, near_held)


def _random(q: Tensor, k: Tensor, v: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    # From a generator of their own, so that what is timed moves no draw of the caller's.
    generator = torch.Generator(q.device).manual_seed(0)
    made = [
        torch.randn(*x.shape[:2], length, x.shape[3], generator=generator, device=x.device)
        for x in (q, k, v)
    ]
    new_q, new_k, new_v = (x.to(q.dtype) for x in made)
    return new_q, new_q if k is q else new_k, new_v


@contextmanager
def _same_draws() -> Iterator[None]:
    """The same random numbers in each of these blocks, and none taken from the caller's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def _without_tensors(mask: Mask | None) -> Mask | None:
    kept = _rules(mask) if mask is not None else Everyone()
    return None if isinstance(kept, Everyone) else kept


def _rules(mask: Mask) -> Mask:
    if not mask.tensors():
        return mask
    return both(_rules(mask.left), _rules(mask.right)) if isinstance(mask, And) else Everyone()


def _checked(lengths: Sequence[int]) -> list[int]:
    for length in lengths:
        check_count("lengths", length)
    if sorted(set(lengths)) != list(lengths):
        raise OptionError(
            f"lengths must grow; got lengths={tuple(lengths)}. Write (256, 1024, 4096), for one."
        )
    return list(lengths)


def _name(function: Function) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
