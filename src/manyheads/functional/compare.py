"""An approximation beside exact attention: how far off, how fast, and from which length on."""

import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.masks import Mask
from manyheads.masks.base import And, Everyone, both
from manyheads.shapes import check_count

Function = Callable[[Tensor, Tensor, Tensor, Mask | None], Tensor]
"""Takes q, k, v and a mask, and gives an output."""

MOST_WEIGHTS = 2**24
# Lengths double from the first; no further one is begun once so many seconds are spent.
FIRST_LENGTH, SECONDS, REPEATS = 64, 10.0, 3


@dataclass(frozen=True)
class Cost:
    """What both functions took at one length.

    Args:
        length: Of queries and of keys, in tokens.
        exact_seconds: The median of a few calls.
        approximate_seconds: Likewise.
        exact_bytes: The most that one call held at once beyond its inputs.
        approximate_bytes: Likewise.
    """

    length: int
    exact_seconds: float
    approximate_seconds: float
    exact_bytes: int
    approximate_bytes: int


@dataclass(frozen=True)
class Comparison:
    """An approximation beside exact attention; prints as a table.

    Args:
        exact: Name of the exact function.
        approximate: Name of the approximation.
        length: (q_len, kv_len) of the call whose errors these are.
        output_error: Norm of the difference of the outputs as a share of that of the exact output.
        largest_error: The largest difference of one number of the output.
        weight_error: The share of a query's weight that lies on other keys than it should, the mean
            over queries: 0 is the same weights, 1 none in common, more takes weights below 0. None
            where the function has no weights, or there are too many to write out.
        costs: Time and memory, a row for each length.
        wins_from: The length from which on the approximation was faster at all lengths tried,
            between two of them in proportion; 0 if it was at all of them, None if not at the last.
    """

    exact: str
    approximate: str
    length: tuple[int, int]
    output_error: float
    largest_error: float
    weight_error: float | None
    costs: tuple[Cost, ...]
    wins_from: int | None

    def __str__(self) -> str:
        q_len, kv_len = self.length
        weights = "-" if self.weight_error is None else f"{self.weight_error:.3g} of the weight"
        norm, most = f"{self.output_error:.3g} of its norm", f"{self.largest_error:.3g}"
        lines = [
            f"{self.approximate} beside {self.exact}, {q_len} queries and {kv_len} keys",
            f"  output off by   {norm}, at most {most}",
            f"  weights off by  {weights}",
        ]
        if self.costs:
            head = f"{'exact':>12}{'approximate':>14}"
            lines += [
                f"{'length':>8}{head}{'times':>8}{head}",
                f"{'':8}{'seconds':>26}{'bytes':>34}",
            ]
            lines += [_row(cost) for cost in self.costs]
            lines.append(self.verdict)
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """From which length on the approximation is faster, in a sentence."""
        if not self.costs:
            return "no length was timed"
        if self.wins_from is None:
            return f"{self.approximate} is not faster up to {self.costs[-1].length} tokens"
        if self.wins_from == 0:
            return f"{self.approximate} is faster at every length tried"
        return f"{self.approximate} is faster from about {self.wins_from} tokens on"

    def chart(self, width: int = 40) -> str:
        """Draw the seconds of each length as two bars, on a scale of powers."""
        bars = {
            (cost.length, name): seconds
            for cost in self.costs
            for name, seconds in (
                (self.exact, cost.exact_seconds),
                (self.approximate, cost.approximate_seconds),
            )
        }
        if not bars:
            return ""
        low, high = math.log(min(bars.values())), math.log(max(bars.values()))
        names = max(len(self.exact), len(self.approximate))
        lines = []
        for (length, name), seconds in bars.items():
            share = (math.log(seconds) - low) / (high - low) if high > low else 1.0
            label = f"{length if name == self.exact else '':>8} {name:<{names}}"
            lines.append(f"{label} {'█' * (1 + round(share * (width - 1)))} {_seconds(seconds)}")
        return "\n".join(lines)


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
        wins_from=_wins_from(costs),
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
    start = time.perf_counter()
    for length in itertools.count() if lengths is None else lengths:
        if lengths is None:
            length = FIRST_LENGTH * 2**length
            if time.perf_counter() - start > SECONDS:
                return
        made = _random(q, k, v, length)
        calls = [partial(function, *made, mask) for function in (exact, approximate)]
        with torch.no_grad():
            fast, near = _seconds_of(calls)
            held, near_held = (_peak_bytes(call, q.device) for call in calls)
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


def _seconds_of(calls: Sequence[Callable[[], Tensor]]) -> list[float]:
    """The median time of each call, taken in turns so that a busy moment strikes both."""
    taken: list[list[float]] = [[] for _ in calls]
    for repeat in range(REPEATS + 1):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            output = call()
            if output.device.type == "cuda":
                torch.cuda.synchronize(output.device)
            if repeat:  # the first warms up
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def _peak_bytes(call: Callable[[], Tensor], device: torch.device) -> int:
    """The most that torch's allocator held at once during a call, beyond what it held before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    from torch.profiler import ProfilerActivity, profile

    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    results = seen.profiler.kineto_results
    assert results is not None
    events = [event for event in results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events), default=0)


@contextmanager
def _silent() -> Iterator[None]:
    # The profiler's C++ says on stderr that it starts and stops, past Python's own.
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


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


def _wins_from(costs: Sequence[Cost]) -> int | None:
    gains = [cost.exact_seconds / cost.approximate_seconds for cost in costs]
    losses = [place for place, gain in enumerate(gains) if gain <= 1]
    if not costs or gains[-1] <= 1:
        return None
    if not losses:
        return 0
    last = losses[-1]
    # Times are near powers of the length, so logarithms are near lines.
    low, high = math.log(gains[last]), math.log(gains[last + 1])
    share = -low / (high - low)
    return round(costs[last].length ** (1 - share) * costs[last + 1].length ** share)


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


def _row(cost: Cost) -> str:
    return (
        f"{cost.length:>8}{_seconds(cost.exact_seconds):>12}{_seconds(cost.approximate_seconds):>14}"
        f"{cost.exact_seconds / cost.approximate_seconds:>8.3g}"
        f"{_size(cost.exact_bytes):>12}{_size(cost.approximate_bytes):>14}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} MB"
