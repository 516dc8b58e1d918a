"""How the learning rate rises and falls."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupCosine:
    """Rise in a line for ``warmup`` steps, then fall along half a cosine to 0 at ``steps``.

    Args:
        warmup: Steps of the rise; the last of them has the full rate.
        steps: All steps of the run.

    Source:
        Loshchilov and Hutter 2017, equation 5, without restarts.

    Example:
        >>> factor = WarmupCosine(warmup=3, steps=6)
        >>> [round(factor(step), 4) for step in range(6)]
        [0.3333, 0.6667, 1.0, 1.0, 0.75, 0.25]
    """

    warmup: int
    steps: int

    def __call__(self, step: int) -> float:
        """Give the factor of the learning rate for a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
