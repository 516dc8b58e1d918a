"""The text of one row, as far as it may be told."""

from manyheads.errors import OptionError
from manyheads.models.generation.stop import Stop

INCOMPLETE = "\ufffd"
"""What a decoder writes for bytes that are not a whole character."""


class Told:
    """What of a growing text can be told, because nothing to come will take it back.

    Held back is what may turn out to be the beginning of a stop string, and a character whose
    bytes are not all there.

    Args:
        stop: What ends the text, and how to read tokens.

    Example:
        >>> from manyheads.models.generation import Stop
        >>> words = ["so ", "E", "N", "END", "s"]
        >>> told = Told(Stop(strings=("END",), decode=lambda ids: "".join(words[i] for i in ids)))
        >>> [told.add(token) for token in (0, 1, 2, 4, 1, 3)]
        ['so ', '', '', 'ENs', '', 'E']
        >>> told.ended
        True
    """

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.tokens: list[int] = []
        self.text = ""
        self.ended = False
        """Whether a stop string was met."""

    def add(self, token: int, *, may_end: bool = True) -> str:
        """What can be told now that this token has come."""
        assert self.stop.decode is not None
        self.tokens.append(token)
        text = self.stop.decode(self.tokens)
        self._check(text)
        if may_end:
            ends = [text.find(string, len(self.text)) for string in self.stop.strings]
            first = min((end for end in ends if end >= 0), default=-1)
            if first >= 0:
                self.ended = True
                return self._tell(text[:first])
        return self._tell(text[: self._certain(text)])

    def rest(self) -> str:
        """What was held back, now that no token will follow."""
        if self.ended or self.stop.decode is None:
            return ""
        return self._tell(self.stop.decode(self.tokens))

    def _tell(self, text: str) -> str:
        new, self.text = text[len(self.text) :], text
        return new

    def _certain(self, text: str) -> int:
        """How many characters no stop string and no further byte can take back."""
        length = max(len(text.rstrip(INCOMPLETE)), len(self.text))
        for start in range(len(self.text), length):
            held = text[start:length]
            if any(x.startswith(held) and x != held for x in self.stop.strings):
                return start
        return length

    def _check(self, text: str) -> None:
        if not text.startswith(self.text):
            raise OptionError(
                f"decode must only lengthen its text as tokens come; got {text!r} after "
                f"{self.text!r} was told. Turn off what cleans up spaces in the tokenizer."
            )
