"""Time contenders side by side, so that a busy machine slows them all alike."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Contender = Callable[[], object]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Ratio:
    """How many times as long one contender takes as another.

    Args:
        median: The middle one of the rounds' ratios; below 1 the first is faster.
        low: Lower end of its 95 % bootstrap interval.
        high: Upper end.
        rounds: How many rounds there were.
    """

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def interleave(
    contenders: Mapping[str, Contender],
    rounds: int,
    *,
    warmups: int = 1,
    clock: Callable[[], float] = time.process_time,
    seed: int = 0,
) -> Times:
    """Seconds of each contender in each round; a round times every one once, in shuffled order.

    Args:
        contenders: What to call, by name.
        rounds: How often.
        warmups: Rounds before the first that counts.
        clock: CPU time of all threads by default, which waiting for a busy core does not lengthen.
        seed: Of the order.
    """
    order, draw = list(contenders), random.Random(seed)
    times: Times = {name: [] for name in contenders}
    for turn in range(-warmups, rounds):
        draw.shuffle(order)
        for name in order:
            start = clock()
            contenders[name]()
            taken = clock() - start
            if turn >= 0:
                times[name].append(taken)
    return times


def ratio(ours: list[float], theirs: list[float], *, seed: int = 0, draws: int = 2000) -> Ratio:
    """The median over rounds of ours / theirs, with its bootstrap interval."""
    each = np.asarray(ours) / np.asarray(theirs)
    picks = np.random.default_rng(seed).integers(len(each), size=(draws, len(each)))
    low, high = np.quantile(np.median(each[picks], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(each)), float(low), float(high), len(each))


def best_of(names: list[str], times: Times) -> str:
    """The name of the contender with the lowest median."""
    return min(names, key=lambda name: float(np.median(times[name])))
