"""Two numbers, to be added digit by digit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from manyheads.errors import OptionError
from manyheads.tasks.base import Example, Task
from manyheads.tasks.vocabulary import Vocabulary


@dataclass(frozen=True)
class Addition(Task):
    """Sums: "58+167" -> "225".

    Held out is the pair of numbers, in either order. The right attention: a digit of the sum
    reads the digits of its own place and, because of the carry, those of the place below.

    Args:
        max_digits: The most digits of a number; every count from 1 on is equally frequent.

    Example:
        >>> Addition(max_digits=3).example(58, 167).alignment
        ((0, 3, 4), (0, 1, 4, 5), (1, 5))
    """

    max_digits: int = 3

    name: ClassVar[str] = "addition"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_digits < 1:
            raise OptionError(
                f"max_digits must be at least 1; got max_digits={self.max_digits}. "
                "Pass max_digits=3, for example."
            )

    @property
    def source_vocabulary(self) -> Vocabulary:
        return Vocabulary("+0123456789")

    @property
    def target_vocabulary(self) -> Vocabulary:
        return Vocabulary("0123456789")

    def draw(self, dice: random.Random) -> Example:
        first, second = (self._number(dice) for _ in range(2))
        return self.example(first, second)

    def _number(self, dice: random.Random) -> int:
        digits = dice.randint(1, self.max_digits)
        return dice.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)

    def example(self, first: int, second: int) -> Example:
        """Write the sum of two numbers of at least 0."""
        a, b = str(first), str(second)
        target = str(first + second)
        places = range(len(target) - 1, -1, -1)
        return Example(
            source=f"{a}+{b}",
            target=target,
            alignment=tuple(_read_by(place, len(a), len(b)) for place in places),
            fields=tuple(f"10^{place}" for place in places),
            unit=f"{min(first, second)}+{max(first, second)}",
        )


def _read_by(place: int, a_digits: int, b_digits: int) -> tuple[int, ...]:
    """Positions of the digits of a place and the one below it, in "a+b" of these widths."""
    ends = ((a_digits - 1, a_digits), (a_digits + b_digits, b_digits))
    positions = [
        end - p
        for end, digits in ends
        for p in (place, place - 1)
        if 0 <= p < digits  # a shorter number has no digit here
    ]
    return tuple(sorted(positions))
