"""A text, to be written backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from manyheads.tasks.copy import Copy


@dataclass(frozen=True)
class Reverse(Copy):
    """Random letters -> the same letters from last to first: "hello" -> "olleh".

    The right attention: target character i reads source character length - 1 - i, so a head
    that looks at equal positions does not do.

    Example:
        >>> example = Reverse(letters="ab", min_length=3, max_length=3).split("train")[0]
        >>> example.target == example.source[::-1], example.alignment
        (True, ((2,), (1,), (0,)))
    """

    name: ClassVar[str] = "reverse"

    def order(self, length: int) -> range:
        return range(length - 1, -1, -1)
