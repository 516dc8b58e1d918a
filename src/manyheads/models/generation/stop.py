"""What ends a text."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from manyheads.errors import OptionError
from manyheads.shapes import whole


@dataclass(frozen=True)
class Stop:
    """Where a text ends before its greatest length.

    A stop token is the last token of its row; a stop string ends the row at the token that
    completes it, wherever in that token, and does not become part of the text.

    Args:
        tokens: Ids that end a text.
        strings: Texts that end it.
        decode: Tokens to text, such as a tokenizer's own; needed for strings, and for a `Step` to
            tell text. More tokens must only lengthen what it says, except for an incomplete
            character at the end.

    Raises:
        OptionError: If a string is empty, or there is nothing to read it with.

    Example:
        >>> import manyheads as mh
        >>> mh.Stop(tokens=(2,))
        Stop(tokens=(2,), strings=(), decode=None)
    """

    tokens: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    decode: Callable[[list[int]], str] | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "strings"):
            value = getattr(self, name)
            one = isinstance(value, str) or getattr(value, "ndim", 1) == 0
            if one or not isinstance(value, Iterable):
                raise OptionError(
                    f"{name} must be several; got {name}={value!r}. Write {name}=({value!r},)."
                )
            object.__setattr__(self, name, tuple(value))
        if any(whole(token) is None for token in map(_plain, self.tokens)):
            raise OptionError(
                f"tokens must be ids; got tokens={self.tokens}. A text that ends a text goes into "
                f"strings=."
            )
        object.__setattr__(self, "tokens", tuple(int(token) for token in self.tokens))
        if any(not isinstance(string, str) for string in self.strings):
            raise OptionError(
                f"strings must hold texts; got strings={self.strings}. Ids go into tokens=."
            )
        if self.decode is not None and not callable(self.decode):
            raise OptionError(
                f"decode must be a function from ids to text; got decode={self.decode!r}. Write "
                f"decode=tokenizer.decode."
            )
        if "" in self.strings:
            raise OptionError(
                "strings must hold at least one character each; got ''. Leave it out."
            )
        if self.strings and self.decode is None:
            raise OptionError(
                "decode must be given where strings end a text; got decode=None. Write "
                "Stop(strings=..., decode=tokenizer.decode)."
            )


def _plain(token: object) -> object:
    return token.item() if isinstance(token, Tensor) and token.ndim == 0 else token
