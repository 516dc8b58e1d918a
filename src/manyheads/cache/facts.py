"""Facts of tokens, cut and laid together as caches do it."""

import torch
from torch import Tensor

from manyheads.errors import CacheError
from manyheads.masks import Tokens


def last(tokens: Tokens, length: int) -> Tokens:
    """The last ``length`` tokens."""
    start = tokens.length - length
    if isinstance(tokens.position, Tensor):
        position: int | Tensor = tokens.position[..., start:]
    else:
        position = tokens.position + start
    absent = None if tokens.absent is None else tokens.absent[:, start:]
    marks = {name: mark[:, start:] for name, mark in tokens.marks.items()}
    return Tokens(length, position, absent, marks, tokens.device)


def columns(tokens: Tokens, index: Tensor) -> Tokens:
    """The tokens in ``index``, int (batch or 1, length); below 0 is no token."""
    gone, place = index < 0, index.clamp(min=0)
    position = pick(_rows(tokens.positions()), place).masked_fill(gone, -1)
    absent: Tensor | None = gone
    if tokens.absent is not None:
        absent = gone | pick(tokens.absent, place)
    marks = {name: pick(mark, place) for name, mark in tokens.marks.items()}
    return Tokens(index.shape[1], position, absent, marks, tokens.device)


def pad_left(tokens: Tokens, count: int) -> Tokens:
    """These tokens after ``count`` absent ones."""
    positions = _rows(tokens.positions())
    absent = torch.zeros_like(positions, dtype=torch.bool)
    if tokens.absent is not None:
        absent = absent | tokens.absent
    pad = torch.nn.functional.pad
    return Tokens(
        tokens.length + count,
        pad(positions, (count, 0), value=-1),
        pad(absent, (count, 0), value=True),
        {name: pad(mark, (count, 0)) for name, mark in tokens.marks.items()},
        tokens.device,
    )


def stack(first: Tokens, first_batch: int, second: Tokens, second_batch: int) -> Tokens:
    """The facts of some rows and of further ones, all of one length.

    Raises:
        CacheError: If one of the two lacks a fact for which no answer can be assumed.
    """

    def rows(mine: Tensor, theirs: Tensor) -> Tensor:
        return torch.cat((mine.expand(first_batch, -1), theirs.expand(second_batch, -1)))

    absent, position = None, first.position
    if not (first.is_run and second.is_run and first.position == second.position):
        position = rows(_rows(first.positions()), _rows(second.positions()))
    if first.absent is not None or second.absent is not None:
        absent = rows(_absent(first), _absent(second))
    marks = {
        name: rows(_mark(name, first, second), _mark(name, second, first))
        for name in {**first.marks, **second.marks}
    }
    return Tokens(first.length, position, absent, marks, first.device)


def beside(first: Tokens, first_batch: int, second: Tokens, second_batch: int) -> Tokens:
    """As `stack`, for rows of any two lengths: the shorter are padded on the left."""
    missing = first.length - second.length
    if missing > 0:
        second = pad_left(second, missing)
    elif missing < 0:
        first = pad_left(first, -missing)
    return stack(first, first_batch, second, second_batch)


def pick(fact: Tensor, index: Tensor) -> Tensor:
    """(batch or 1, length): the columns of a fact that are named in each row."""
    batch = max(fact.shape[0], index.shape[0])
    return fact.expand(batch, -1).gather(1, index.expand(batch, -1))


def _rows(positions: Tensor) -> Tensor:
    return positions[None] if positions.ndim == 1 else positions


def _absent(tokens: Tokens) -> Tensor:
    if tokens.absent is not None:
        return tokens.absent
    return torch.zeros(1, tokens.length, dtype=torch.bool, device=tokens.device)


def _mark(name: str, tokens: Tokens, other: Tokens) -> Tensor:
    if name in tokens.marks:
        return tokens.marks[name]
    mark = other.marks[name]
    if mark.dtype != torch.bool:  # of which it could be said that what nobody said is not so
        raise CacheError(
            f"rows that are merged must all know the {name.split('#')[0]} of their tokens or "
            f"none; got {tokens.length} tokens without. Use one mask for both caches."
        )
    return torch.zeros(1, tokens.length, dtype=torch.bool, device=mark.device)
