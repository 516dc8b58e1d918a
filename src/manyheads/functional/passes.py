"""One pass over the scores of a call, which may answer several questions."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from manyheads.functional.call import Call
from manyheads.functional.pieces import Piece, pieces

Answer = TypeVar("Answer", covariant=True)


class Met:
    """A piece of scores as questions meet it; neither scores nor weights are theirs to change.

    Args:
        piece: The piece.
        total: What its rows are normalised by, in logarithms, (sequences, heads, rows).
    """

    def __init__(self, piece: Piece, total: Tensor) -> None:
        self.at, self.scores = piece.at, piece.scores
        self.sequence, self.heads, self.rows, self.keys = piece[:4]
        self._total = total

    @cached_property
    def weights(self) -> Tensor:
        """(sequences, heads, rows, keys), made once for all questions."""
        return (self.scores - self._total[..., None]).exp_()


@runtime_checkable
class Question(Protocol[Answer]):
    """What is to be told of a call's weights: one meets all its pieces, then has an answer."""

    def meet(self, piece: Met) -> None:
        """Take in a piece."""

    def answer(self) -> Answer:
        """What is known of the pieces met."""


@torch.no_grad()
def meet(call: Call, total: Tensor, questions: Sequence[Question[Any]]) -> None:
    """Let questions meet every piece of a call.

    Args:
        call: The call.
        total: Log-sum-exp of each row, sink included; finite where a row sees nobody.
        questions: Which.
    """
    for piece in pieces(call):
        met = Met(piece, total[piece.at])
        for question in questions:
            question.meet(met)
