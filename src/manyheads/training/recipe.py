"""Everything that decides which weights a training run ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from manyheads.errors import OptionError

Precision = Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Recipe:
    """How to train: equal recipes, tasks and model configs give equal weights on one machine.

    Args:
        steps: Optimiser steps at most.
        batch_size: Examples in a microbatch.
        accumulate: Microbatches in a step. The loss is the mean over all their real tokens, so
            ``accumulate=4`` equals a batch four times as large.
        learning_rate: The peak, after the warm-up.
        warmup: Steps until the peak; then half a cosine down to 0 at ``steps``.
        weight_decay: AdamW's, a fraction of the learning rate.
        clip: The largest norm of all gradients together; None leaves them as they are.
        check_every: Steps between two looks at the validation split, each followed by a
            checkpoint.
        stop_at: The fraction of exactly right validation examples that ends the run early;
            above 1 never.
        precision: Lightning's name: "32-true", or "bf16-mixed" where the processor gains by it.
        seed: Of the initial weights, the dropout and the order of the examples.

    Example:
        >>> Recipe(steps=200, warmup=20).check_every
        250
    """

    steps: int = 1500
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 4e-3
    warmup: int = 150
    weight_decay: float = 0.01
    clip: float | None = 1.0
    check_every: int = 250
    stop_at: float = 1.0
    precision: Precision = "32-true"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "check_every"):
            self._check(name, getattr(self, name) >= 1, "be at least 1")
        for name in ("warmup", "weight_decay", "seed"):
            self._check(name, getattr(self, name) >= 0, "be 0 or more")
        self._check("learning_rate", self.learning_rate > 0, "be above 0")
        self._check("clip", self.clip is None or self.clip > 0, "be above 0, or None")
        self._check("stop_at", self.stop_at > 0, "be above 0; above 1 never stops early")
        names = get_args(Precision)
        self._check("precision", self.precision in names, f"be one of {', '.join(names)}")
        self._check("warmup", self.warmup <= self.steps, f"end within steps={self.steps}")

    def _check(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise OptionError(
                f"{name} must {rule}; got {name}={getattr(self, name)}. "
                f"Pass Recipe({name}=...) within this range."
            )
