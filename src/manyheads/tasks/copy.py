"""A text, to be written again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from manyheads.errors import OptionError
from manyheads.tasks.base import Example, Task
from manyheads.tasks.vocabulary import Vocabulary


@dataclass(frozen=True)
class Copy(Task):
    """Random letters -> the same letters: "hello" -> "hello".

    The right attention: target character i reads source character i. The smallest test that a
    decoder sees its source.

    Args:
        min_length: The shortest text, in characters.
        max_length: The longest text, in characters.
        letters: The characters that a text is made of, each once.

    Example:
        >>> example = Copy(letters="ab", min_length=3, max_length=3).split("train")[0]
        >>> example.target == example.source, example.alignment
        (True, ((0,), (1,), (2,)))
    """

    min_length: int = 3
    max_length: int = 12
    letters: str = "abcdefghijklmnopqrstuvwxyz"

    name: ClassVar[str] = "copy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_length <= self.max_length:
            raise OptionError(
                "min_length and max_length must be in order and at least 1 character; got "
                f"min_length={self.min_length}, max_length={self.max_length}. Swap or mend them."
            )
        Vocabulary(self.letters)

    @property
    def source_vocabulary(self) -> Vocabulary:
        return Vocabulary(self.letters)

    @property
    def target_vocabulary(self) -> Vocabulary:
        return Vocabulary(self.letters)

    def draw(self, dice: random.Random) -> Example:
        length = dice.randint(self.min_length, self.max_length)
        source = "".join(dice.choice(self.letters) for _ in range(length))
        order = self.order(length)
        return Example(
            source=source,
            target="".join(source[i] for i in order),
            alignment=tuple((i,) for i in order),
            fields=("character",) * length,
            unit=source,
        )

    def order(self, length: int) -> range:
        """Give, for each target character, the source character that it is."""
        return range(length)
