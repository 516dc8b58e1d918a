"""Which weights dropout drops: drawn anew from a seed, so that they need not be kept."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_LEVELS = 2**16

Draw = Callable[[Tensor], Tensor]
"""Draws for weights: of their shape and dtype, 1 where one is kept and 0 where it is dropped."""


@dataclass(frozen=True)
class Drops:
    """The draws of one call of attention, the same ones as often as they are asked for.

    16 bits decide on a weight, which costs an eighth of what ``bernoulli_`` takes. So the share is
    rounded to 1 / 65536, and those kept are weighed by what it was rounded to.

    Args:
        dropped: Of 65536 levels, those at which a weight is dropped.
        seed: Of the draws.

    Example:
        >>> drops = Drops.of(0.25)
        >>> first, again = drops.start(), drops.start()
        >>> weights = torch.full((2, 3), 0.5)
        >>> torch.equal(first(weights), again(weights))
        True
    """

    dropped: int
    seed: int

    @classmethod
    def of(cls, dropout: float) -> "Drops":
        """Draws of torch's generator that drop a share below 1."""
        return cls(min(round(dropout * _LEVELS), _LEVELS - 1), int(torch.randint(2**63 - 1, ())))

    @property
    def factor(self) -> float:
        """What a weight that is kept is multiplied by, so that the mean stays what it was."""
        return _LEVELS / (_LEVELS - self.dropped)

    def start(self) -> Draw:
        """A function that draws for some weights after others."""
        generator = torch.Generator().manual_seed(self.seed)

        def draw(weights: Tensor) -> Tensor:
            words = torch.empty(-(-weights.numel() // 4), dtype=torch.int64)
            levels = words.random_(-(2**63), None, generator=generator).view(torch.int16)
            levels = levels[: weights.numel()].view(weights.shape)
            return torch.ge(levels, self.dropped - _LEVELS // 2, out=torch.empty_like(weights))

        return draw
