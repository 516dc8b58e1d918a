"""What is known of a tensor that was made of scores."""

from dataclasses import dataclass

from torch import Tensor

from manyheads.functional import Call
from manyheads.probe.scores import Scores


@dataclass(frozen=True)
class Weights:
    """What a softmax made of scores.

    Args:
        call: The call that it belongs to.
        own: Some of its rows, to compare with.
        changed: Whether it was changed since, as dropout does.
    """

    call: Call
    own: Tensor
    changed: bool = False


@dataclass(frozen=True)
class Exponentials:
    """A softmax that somebody writes out, before it is divided by its sums."""

    call: Call


@dataclass(frozen=True)
class Lost:
    """What was made of scores by a step that is not followed; a softmax of it is told as missed."""

    step: str


Known = Scores | Exponentials | Weights | Lost
