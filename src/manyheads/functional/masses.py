"""How much weight lies on some keys, on pairs of a kind, and where amounts are carried."""

from collections.abc import Callable

import torch
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.functional.call import Call
from manyheads.functional.paired import paired_scores
from manyheads.functional.passes import Met
from manyheads.functional.pieces import SCORES, mask_of
from manyheads.functional.reference import masked_scores
from manyheads.functional.window import window
from manyheads.shapes import check_tensor

Pairs = Callable[[slice, slice, slice], Tensor]
"""Of some sequences, queries and keys: by what each pair's weight is multiplied, bool or number,
(sequences or 1, heads or 1, queries, keys)."""


class KeyMass:
    """Asks for the mass on sets of keys.

    Args:
        total: What each row is normalised by, in logarithms.
        columns: What `key_sets` makes of them.
    """

    def __init__(self, total: Tensor, columns: Tensor) -> None:
        self.columns = columns
        self.mass = total.new_zeros(*total.shape, columns.shape[2])

    def meet(self, piece: Met) -> None:
        of = piece.sequence if self.columns.shape[0] > 1 else slice(None)
        self.mass[piece.at] += piece.weights @ self.columns[of, None, piece.keys]

    def answer(self) -> Tensor:
        """(batch, num_heads, q_len, sets)."""
        return self.mass


class PairMass:
    """Asks for the mass on pairs of a kind.

    Args:
        total: What each row is normalised by, in logarithms.
        pairs: Which pairs.
    """

    def __init__(self, total: Tensor, pairs: Pairs) -> None:
        self.pairs, self.mass = pairs, torch.zeros_like(total)

    def meet(self, piece: Met) -> None:
        of_pair = self.pairs(piece.sequence, piece.rows, piece.keys).to(piece.weights.dtype)
        self.mass[piece.at] += torch.linalg.vecdot(piece.weights, of_pair)

    def answer(self) -> Tensor:
        """(batch, num_heads, q_len)."""
        return self.mass


class Carried:
    """Asks where amounts go that stand at the queries.

    Args:
        total: What each row is normalised by, in logarithms.
        amounts: (batch, rows, q_len).
        kv_len: How many keys there are.
    """

    def __init__(self, total: Tensor, amounts: Tensor, kv_len: int) -> None:
        self.amounts = amounts[:, None].to(total)
        self.carried = total.new_zeros(*total.shape[:2], amounts.shape[1], kv_len)

    def meet(self, piece: Met) -> None:
        moved = self.amounts[piece.sequence, :, :, piece.rows] @ piece.weights
        self.carried[piece.sequence, piece.heads, :, piece.keys] += moved

    def answer(self) -> Tensor:
        """(batch, num_heads, rows, kv_len)."""
        return self.carried


def key_sets(call: Call, keys: Tensor) -> Tensor:
    """Sets of keys as numbers (batch or 1, kv_len, sets).

    Raises:
        ShapeError: If they are not one a key.
    """
    batch, kv_len = call.q.shape[0], call.k.shape[2]
    keys = check_tensor("keys", keys)
    columns = keys[..., None] if keys.ndim < 3 else keys
    columns = columns[None] if columns.ndim == 2 else columns
    if columns.ndim != 3 or columns.shape[0] not in (1, batch) or columns.shape[1] != kv_len:
        raise ShapeError(
            f"keys must be (kv_len,), (batch, kv_len) or (batch, kv_len, sets), with "
            f"batch={batch} and kv_len={kv_len}; got shape {tuple(keys.shape)}. Say of each "
            f"key whether it is in the set."
        )
    return columns.to(call.q.device, torch.promote_types(call.q.dtype, torch.float32))


def by_distance(call: Call, total: Tensor, function: Callable[[Tensor], Tensor]) -> PairMass:
    """Asks for the mean of a function of (query's position - key's position), by the weights."""
    bound = mask_of(call)
    q, kv = bound.q.side(-2).position, bound.kv.side(-1).position

    def of_pair(sequence: slice, rows: slice, keys: slice) -> Tensor:
        return function(_of(q, sequence)[:, :, rows] - _of(kv, sequence)[..., keys])

    return PairMass(total, of_pair)


def on_few_keys(call: Call, total: Tensor, columns: Tensor, few: Tensor) -> Tensor:
    """The mass on sets of keys of which only few are in any; no pass over all scores.

    Args:
        call: The call.
        total: What each row is normalised by, in logarithms.
        columns: As `KeyMass` takes them.
        few: The keys that are in a set.
    """
    batch, heads, q_len = total.shape
    mass = total.new_zeros(*total.shape, columns.shape[2])
    most = max(1, SCORES // max(1, batch * heads * len(few)))
    for first in range(0, q_len, most):
        rows = slice(first, min(first + most, q_len))
        scores = masked_scores(window(call, slice(0, batch), rows, few))
        weights = scores.sub_(total[:, :, rows, None]).exp_()
        mass[:, :, rows] = weights @ columns[:, None, few]
    return mass


def on_one_behind(call: Call, total: Tensor, tokens: int) -> Tensor | None:
    """The mass on the key so many positions before a query's own; None if positions are no runs."""
    bound = mask_of(call)
    q_first, kv_first = bound.q.position, bound.kv.position
    if isinstance(q_first, Tensor) or isinstance(kv_first, Tensor):
        return None
    mass = torch.zeros_like(total)
    shift = q_first - kv_first - tokens
    first, last = max(0, -shift), min(bound.q.length, bound.kv.length - shift)
    if first < last:
        rows = slice(first, last)
        mass[:, :, rows] = (paired_scores(call, rows, shift) - total[:, :, rows]).exp()
    return mass


def _of(position: Tensor, sequence: slice) -> Tensor:
    return position if position.shape[0] == 1 else position[sequence]
