"""One run of a layer that is read as a whole: what went in, and what its parts made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.functional import Call


class Read(NamedTuple):
    """A call that a layer made.

    Args:
        call: Settles it.
        split: Picks its output from what all heads mixed, (batch, heads, length, value_dim).
        rounding: By what share of the greatest number the layer's own output may be off, where its
            arithmetic is coarser than its dtype; None where it is not.
    """

    call: Callable[[], Call]
    split: Callable[[Tensor], Tensor]
    rounding: float | None = None


@dataclass(frozen=True)
class Layer:
    """One run of a layer.

    Args:
        module: The layer, of which nothing is promised but what is tested.
        given: What its forward was handed, by name.
        parts: What its children made, by name.
        output: What it gave.
    """

    module: Any
    given: Mapping[str, Any]
    parts: Mapping[str, Tensor]
    output: Any

    @property
    def num_heads(self) -> int:
        """How many heads it has, under either of the names in use."""
        names = ("num_heads", "num_attention_heads")
        return next(int(getattr(self.module, name)) for name in names if hasattr(self.module, name))

    def part(self, name: str) -> Float[Tensor, "batch heads length width"]:
        """What a child made of (batch, length, d_model), head by head."""
        return self.split(self.parts[name])

    def split(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch heads length width"]:
        """A stream, head by head."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def merged(
    heads: Float[Tensor, "batch heads length width"],
) -> Float[Tensor, "batch length d_model"]:
    """Heads as a stream."""
    return heads.transpose(1, 2).flatten(2)


def places_of(there: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """The position of each token that is there, and -1 for those that are not."""
    return torch.where(there, torch.arange(there.shape[-1], device=there.device), -1)


def without(absent: Bool[Tensor, "batch length"]) -> Callable[[Tensor], Tensor]:
    """Makes 0 of what was mixed for tokens that are not there."""
    return lambda x: x.masked_fill(absent[:, None, :, None], 0.0)
