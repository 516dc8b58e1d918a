"""What a task is: examples whose right attention is known, in splits that share nothing."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args, overload

from manyheads.errors import OptionError
from manyheads.tasks.vocabulary import Vocabulary

SplitName = Literal["train", "validation", "test"]

# Out of ten hash values eight are learned from, one steers the training, one is kept for the end.
_HOMES: dict[int, SplitName] = {8: "validation", 9: "test"}


@dataclass(frozen=True)
class Example:
    """A source, its target, and the source characters that each target character comes from.

    Args:
        source: The text that is read.
        target: The text to write.
        alignment: For each target character the positions (source characters from the start)
            that carry it; empty where no source character does, as for a fixed separator.
        fields: For each target character the name of the part it belongs to, "" for none.
        unit: What is held out. Every example of one unit is in the same split.
        kind: How the unit is written, for reports ("ru full").
    """

    source: str
    target: str
    alignment: tuple[tuple[int, ...], ...]
    fields: tuple[str, ...]
    unit: str
    kind: str = ""


@dataclass(frozen=True)
class Task(ABC):
    """A family of examples, drawn from a seed, whose right attention is known.

    A task is a frozen dataclass of plain numbers and strings: equal options give equal examples
    on every machine, and ``options()`` rebuilds it from a checkpoint. A new one states ``draw``
    and its two vocabularies; the splits come with it.

    The splits are disjoint by construction: a hash of the *unit* (a calendar date, a pair of
    numbers, a text) says where it lives, so no unit of the test is ever trained on, however it
    is written.
    """

    seed: int = 0
    train_size: int = 49_152
    validation_size: int = 1_024
    test_size: int = 2_048

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for split in get_args(SplitName):
            size = getattr(self, f"{split}_size")
            if size < 1:
                raise OptionError(
                    f"{split}_size must be at least 1 example; got {split}_size={size}. "
                    f"Pass {split}_size=1 or more."
                )
        if self.seed < 0:
            raise OptionError(
                f"seed must be 0 or more; got seed={self.seed}. Pass a seed that is not negative."
            )

    @property
    @abstractmethod
    def source_vocabulary(self) -> Vocabulary:
        """The characters that a source may hold."""

    @property
    @abstractmethod
    def target_vocabulary(self) -> Vocabulary:
        """The characters that a target may hold."""

    @abstractmethod
    def draw(self, dice: random.Random) -> Example:
        """Draw one example, of any split, with no other randomness than ``dice``."""

    def split(self, name: SplitName) -> Split:
        """Give one of the three splits as a sequence of examples.

        Args:
            name: "train", "validation" or "test".

        Raises:
            OptionError: If there is no split of this name.

        Example:
            >>> from manyheads.tasks import Copy
            >>> Copy(min_length=3, max_length=5).split("test")[0].source
            'ezgd'
        """
        if name not in get_args(SplitName):
            raise OptionError(
                f"split must be one of {', '.join(get_args(SplitName))}; got split={name!r}. "
                "Pass one of these."
            )
        return Split(self, name)

    def options(self) -> dict[str, Any]:
        """Give the plain values that rebuild this task: ``type(task)(**task.options())``."""
        return asdict(self)


@dataclass(frozen=True)
class Split(Sequence[Example]):
    """The examples of one split; each is made when it is asked for, and always the same."""

    task: Task
    name: SplitName

    def __len__(self) -> int:
        return int(getattr(self.task, f"{self.name}_size"))

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"index must be below the {len(self)} examples of {self.name!r}; got index={index}."
            )
        # One stream of draws for each index: examples need no order and no memory.
        dice = random.Random(f"{self.task.seed}/{self.name}/{index % len(self)}")
        for _ in range(10_000):
            example = self.task.draw(dice)
            if home(example.unit, self.task.seed) == self.name:
                return example
        raise OptionError(
            f"the options of {self.task.name!r} must leave examples for every split; "
            f"got {self.name}=empty. Widen them (more lengths, digits, years)."
        )


def home(unit: str, seed: int) -> SplitName:
    """Say in which split a unit lives: 80 % train, 10 % validation, 10 % test.

    Args:
        unit: What is held out, as text.
        seed: Another seed deals the units anew.

    Example:
        >>> home("2021-03-04", seed=0) == home("2021-03-04", seed=0)
        True
    """
    digest = hashlib.blake2b(f"{seed}/{unit}".encode(), digest_size=8).digest()
    return _HOMES.get(int.from_bytes(digest, "big") % 10, "train")
