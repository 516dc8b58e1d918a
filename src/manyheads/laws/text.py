"""A text in rows, token by token, and what may be said of it: what caches are tried with."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.masks import (
    Causal,
    Dense,
    Documents,
    Global,
    Mask,
    Padding,
    PerHead,
    Prefix,
    Rule,
    Window,
)

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 8, 6


@dataclass(frozen=True)
class Text:
    """Some tokens in some rows, and what is known of them.

    Args:
        q: Their queries.
        k: Their keys.
        v: Their values.
        ids: int (batch, length), the document of each.
        positions: Where they stand; None means 0, 1, 2, ...
        keep: bool (batch, length), False for padding; None if there is none.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    ids: Tensor
    positions: Tensor | None = None
    keep: Tensor | None = None

    @classmethod
    def drawn(cls, draw: torch.Generator, batch: int, length: int) -> "Text":
        """A random one, in float64."""

        def normal(heads: int, width: int) -> Tensor:
            return torch.randn(batch, heads, length, width, generator=draw, dtype=torch.float64)

        ids = torch.randint(0, 3, (batch, length), generator=draw).sort(dim=1).values
        q, k = normal(NUM_HEADS, HEAD_DIM), normal(NUM_KV_HEADS, HEAD_DIM)
        return cls(q, k, normal(NUM_KV_HEADS, VALUE_DIM), ids)

    @property
    def batch(self) -> int:
        """How many rows."""
        return self.q.shape[0]

    @property
    def length(self) -> int:
        """How many tokens each row has."""
        return self.q.shape[2]

    def slice(self, start: int, stop: int) -> "Text":
        """Some of the tokens."""
        return self._each(lambda x: x[:, :, start:stop] if x.ndim == 4 else x[..., start:stop])

    def rows(self, index: Tensor) -> "Text":
        """The tokens of some rows."""
        return self._each(lambda x: x if x.ndim == 1 else x[index])

    def then(self, other: "Text") -> "Text":
        """These tokens and those of another text behind them; both must know the same."""

        def join(name: str) -> Any:
            mine, theirs = getattr(self, name), getattr(other, name)
            return None if mine is None else torch.cat((mine, theirs), 2 if mine.ndim == 4 else 1)

        return Text(*(join(field.name) for field in fields(self)))

    def void(self, gone: Tensor) -> "Text":
        """This text with NaN for the keys and values of absent tokens, bool (batch, length)."""
        k, v = (x.masked_fill(gone[:, None, :, None], torch.nan) for x in (self.k, self.v))
        return replace(self, k=k, v=v)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Text":
        own = (getattr(self, field.name) for field in fields(self))
        parts: list[Any] = [None if x is None else change(x) for x in own]
        return Text(*parts)


def alike(head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    """A user's rule that differs by head."""
    return (q - kv) % (head % 2 + 2) != 1


def _written_out(whole: Text, new: Text) -> Tensor:
    head = torch.arange(NUM_HEADS).view(-1, 1, 1)
    return (2 * new.ids[:, None, :, None] + whole.ids[:, None, None, :] + head) % 4 != 0


def _first_ids(whole: Text) -> Tensor:
    return whole.ids[:, :1].sum(dim=1)  # (batch,), and 0 where there is no token yet


MASKS: dict[str, Callable[[Text, Text], Mask]] = {
    "causal": lambda whole, new: Causal(),
    "window": lambda whole, new: Causal() & Window(4),
    "global": lambda whole, new: Causal() & (Window(2) | Global((0, 3))),
    "documents": lambda whole, new: Causal() & Documents(new.ids),
    "tags": lambda whole, new: Causal() & (Window(2) | Global(new.ids == 1)),
    "heads": lambda whole, new: (
        Causal() & PerHead((Window(9), Window(2), Global(1), Documents(new.ids)))
    ),
    "rule": lambda whole, new: Causal() & Rule(alike, "alike"),
    "written out": lambda whole, new: Causal() & Dense(_written_out(whole, new)),
}
"""Masks that hide the future, made of all tokens so far and of the new ones, the last of them."""

WIDE: dict[str, Callable[[Text, Text], Mask]] = {
    "both sides": lambda whole, new: Window(2),
    "prefix": lambda whole, new: Causal() | Prefix(3),
    "prefix of each row": lambda whole, new: Causal() | Prefix(_first_ids(whole)),
    "not padding": lambda whole, new: Causal() & (Window(2) | ~Padding(new.ids != 1)),
}
"""Masks that let queries see later keys of their own chunk."""
