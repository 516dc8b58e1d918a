"""Random numbers for each row, from the generators of a call."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.errors import OptionError

Draws = torch.Generator | Sequence[torch.Generator] | None
"""One generator for all rows, one for each row, or None for torch's own."""


def draw_tokens(
    weights: Float[Tensor, "batch vocab"], draws: Draws = None
) -> Int[Tensor, " batch"]:
    """A token of each row, drawn by its weight."""
    if draws is None or isinstance(draws, torch.Generator):
        if not len(weights):
            return torch.zeros(0, dtype=torch.long, device=weights.device)
        return torch.multinomial(weights, 1, generator=draws)[:, 0]
    rows = [draw_tokens(row[None], draw) for row, draw in zip(weights, draws, strict=True)]
    return torch.cat(rows) if rows else draw_tokens(weights)


def draw_shares(rows: int, draws: Draws, device: torch.device) -> Float[Tensor, " rows"]:
    """A number of [0, 1) for each row."""
    if draws is None or isinstance(draws, torch.Generator):
        return torch.rand(rows, generator=draws, dtype=torch.float64, device=device)
    return torch.cat([draw_shares(1, draw, device) for draw in draws])


def check_draws(draws: Draws, rows: int) -> None:
    """Refuse generators that are not one for each row."""
    if draws is None or isinstance(draws, torch.Generator):
        return
    each = isinstance(draws, Sequence) and all(isinstance(x, torch.Generator) for x in draws)
    if each and len(draws) == rows:
        return
    got = len(draws) if each else repr(draws)
    raise OptionError(
        f"generator must be one, or one for each of {rows} rows; got {got}. A row with a "
        f"generator of its own is written as it would be alone."
    )
