"""A module on show, and what should be said of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.doctor import Facts

UNKNOWN = Facts()
WIDTH, HEADS, LENGTH, WORDS = 24, 4, 13, 40
"""Of the exhibits: features, heads, tokens, and words of a vocabulary."""


def stream(length: int = LENGTH, batch: int = 2, width: int = WIDTH) -> Tensor:
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(7))


def ids(length: int = LENGTH, batch: int = 2) -> Tensor:
    return torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(7))


@dataclass(frozen=True)
class Exhibit:
    """A module on show.

    Args:
        name: Of it, and of its style.
        build: Makes it.
        args: An example of its input.
        kwargs: The rest of the example.
        facts: What is declared of it.
        code: The disease that it has; none if it is healthy.
        package: What must be installed for it, as it is imported.
    """

    name: str
    build: Callable[[], nn.Module]
    args: tuple[Any, ...] = field(default_factory=lambda: (stream(),))
    kwargs: dict[str, Any] = field(default_factory=dict)
    facts: Facts = UNKNOWN
    code: str = ""
    package: str = ""

    def __str__(self) -> str:
        return f"{self.code}-{self.name}" if self.code else self.name
