"""Some queries and some keys of a call, as a call of their own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.functional.bias import PlacedBias
from manyheads.functional.call import Call
from manyheads.masks.cut import Chosen, cut, take_pairs, take_places

Tokens = slice | int | Sequence[int] | Tensor | None
"""Some tokens of one side: a slice, an index, several, bools; None for all."""


def window(call: Call, sequence: slice, rows: Chosen, keys: Chosen) -> Call:
    """The call that only some sequences, queries and keys make, all heads of it.

    Args:
        call: The whole call.
        sequence: Which sequences.
        rows: Which queries: a slice, or their indices.
        keys: Which keys, likewise.
    """
    mask = None if call.mask is None else cut(call.mask, sequence, rows, keys)
    bias = call.bias
    if isinstance(bias, PlacedBias):
        bias = PlacedBias(
            bias.rule,
            take_places(bias.q_pos, sequence, rows),
            take_places(bias.kv_pos, sequence, keys),
        )
    elif bias is not None:
        bias = take_pairs(bias, sequence, rows, keys)
    return call._replace(
        q=_take(call.q, sequence, rows),
        k=_take(call.k, sequence, keys),
        v=_take(call.v, sequence, keys),
        mask=mask,
        bias=bias,
    )


def indices(name: str, chosen: Tokens, length: int, device: torch.device) -> Tensor:
    """The indices of chosen tokens, int (chosen,).

    Args:
        name: What the caller knows them by.
        chosen: Which tokens.
        length: How many there are.
        device: Where the indices should be.

    Raises:
        OptionError: If some are not there.
    """
    every = torch.arange(length, device=device)
    if chosen is None or isinstance(chosen, slice):
        return every if chosen is None else every[chosen]
    try:
        index = torch.atleast_1d(torch.as_tensor(chosen, device=device))
        if index.ndim == 1:
            return every[index if index.numel() else index.long()]
    except (IndexError, TypeError, ValueError, RuntimeError):
        pass
    raise OptionError(
        f"{name} must lie in the {length} tokens of the call; got {name}={chosen}. Give a slice, "
        f"indices from 0 on, or a bool for each."
    )


def _take(x: Tensor, sequence: slice, chosen: Chosen) -> Tensor:
    return x[sequence][:, :, chosen]
