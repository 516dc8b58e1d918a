"""What a text goes on from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import DTypeError, ShapeError
from manyheads.models.embedding import check_ids

Tokens = Tensor | Sequence[Sequence[int] | Tensor]
"""Token ids (batch, length), or a sequence of rows of any lengths."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """Rows of tokens, the shorter padded on the left.

    Args:
        tokens: int (batch, length).
        absent: bool (batch, length), True where there is no token; None if all are there.
    """

    tokens: Tensor
    absent: Tensor | None = None

    @classmethod
    def of(cls, tokens: Tokens, vocab_size: int, device: torch.device) -> "Prompt":
        """The prompt that a caller gave.

        Raises:
            DTypeError: If it is text, or other things than ids.
            OptionError: If a token is not of the vocabulary.
            ShapeError: If a row is empty.
        """
        if isinstance(tokens, Tensor):
            check_ids("tokens", tokens, vocab_size)
            if len(tokens) and not tokens.shape[1]:
                _refuse_empty()
            return cls(tokens)
        rows = [_row(row, device) for row in _several(tokens)]
        for row in rows:
            if not row.numel():
                _refuse_empty()
            check_ids("tokens", row[None], vocab_size)
        return cls(*left_pad(rows))

    def positions(self, first: Int[Tensor, "rows 1"]) -> Int[Tensor, "batch length"] | None:
        """Where the tokens stand if the first of each row stands there; -1 for no token.

        None says that every row is a run of tokens that follow what was before.
        """
        if self.absent is None:
            return None
        place = (~self.absent).cumsum(dim=1) - 1 + first
        return place.masked_fill(self.absent, -1)


def left_pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Rows of different lengths as one tensor, and where there is no token.

    Example:
        >>> left_pad([torch.tensor([5, 6, 7]), torch.tensor([8])])[0]
        tensor([[5, 6, 7],
                [0, 0, 8]])
    """
    longest = max((len(row) for row in rows), default=0)
    if not rows:
        return torch.zeros(0, 0, dtype=torch.long), None
    tokens = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0)) for row in rows])
    lengths = torch.tensor([[len(row)] for row in rows], device=tokens.device)
    absent = torch.arange(longest, device=tokens.device) < longest - lengths
    return tokens, absent if int(lengths.min()) < longest else None


def _several(tokens: object) -> Iterable[object]:
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise DTypeError(
            f"tokens must be token ids, (batch, length) or rows of them; got tokens={tokens!r}. "
            f"Encode the text with the model's vocabulary first."
        )
    return tokens


def _row(row: object, device: torch.device) -> Tensor:
    try:
        return torch.as_tensor(row, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise DTypeError(
            f"tokens must be rows of token ids; got a row {row!r}. Encode the text with the "
            f"model's vocabulary first."
        ) from None


def _refuse_empty() -> None:
    raise ShapeError(
        "a prompt must hold at least one token; got an empty one. Begin with the token that texts "
        "begin with."
    )
