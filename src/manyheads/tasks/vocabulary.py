"""Characters and the integers that stand for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from manyheads.errors import OptionError

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
_SPECIALS = 3


@dataclass(frozen=True)
class Vocabulary:
    """The characters that a model knows, each with an id.

    Ids 0, 1 and 2 are padding, begin and end; the characters follow in the order given.

    Args:
        characters: All characters, each once.

    Raises:
        OptionError: If a character stands twice, or there is none.

    Example:
        >>> digits = Vocabulary("0123456789")
        >>> digits.encode("42")
        [7, 5]
        >>> digits.decode([1, 7, 5, 2, 0])
        '42'
    """

    characters: str

    def __post_init__(self) -> None:
        if not self.characters or len(set(self.characters)) != len(self.characters):
            raise OptionError(
                "characters must be at least one, each once; "
                f"got characters={self.characters!r}. Build it with Vocabulary.of(texts)."
            )

    @classmethod
    def of(cls, texts: Iterable[str]) -> Vocabulary:
        """Collect the characters of all texts, in the order of their code points."""
        return cls("".join(sorted(set().union(*texts))))

    def __len__(self) -> int:
        """Count the ids, the three special ones included: the width of an embedding."""
        return len(self.characters) + _SPECIALS

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {c: i for i, c in enumerate(self.characters, start=_SPECIALS)}

    def encode(self, text: str) -> list[int]:
        """Turn a text into ids, one for each character, with nothing added at the ends.

        Raises:
            OptionError: If a character is unknown; the message names each.
        """
        try:
            return [self._ids[c] for c in text]
        except KeyError:
            unknown = "".join(sorted(set(text) - set(self.characters)))
            raise OptionError(
                f"text must use characters that this vocabulary knows; got unknown={unknown!r} "
                f"in text={text!r}. Leave them out, or train with them."
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids back into text: stops at the first end, leaves the other special ids out.

        Raises:
            OptionError: If an id is outside of the vocabulary.
        """
        letters: list[str] = []
        for i in map(int, ids):
            if not 0 <= i < len(self):
                raise OptionError(
                    f"ids must be from 0 to {len(self) - 1}; got id={i}. "
                    "Decode with the vocabulary that the model was trained with."
                )
            if i == EOS_ID:
                break
            if i >= _SPECIALS:
                letters.append(self.characters[i - _SPECIALS])
        return "".join(letters)
