"""What a comparison with exact attention found, as a table, a sentence and a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


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


def wins_from(costs: Sequence[Cost]) -> int | None:
    """The length from which on the approximation is faster; see `Comparison`."""
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
