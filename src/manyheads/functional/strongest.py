"""The greatest weights of each row, and the keys that have them."""

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.functional.passes import Met


class Peak(NamedTuple):
    """The greatest weight of each row.

    Args:
        weight: (batch, num_heads, q_len).
        key: (batch, num_heads, q_len), the first key that has it; -1 if the row sees nobody.
    """

    weight: Tensor
    key: Tensor


class Top(NamedTuple):
    """The greatest weights of each row, greatest first.

    Args:
        weights: (batch, num_heads, q_len, count).
        keys: (batch, num_heads, q_len, count); -1, with weight 0, where a row sees fewer.
    """

    weights: Tensor
    keys: Tensor


class Peaks:
    """Asks for the greatest weight of each row.

    Args:
        total: What each row is normalised by, in logarithms.
    """

    def __init__(self, total: Tensor) -> None:
        self.total = total
        self.best = torch.full_like(total, -torch.inf)
        self.place = torch.full(total.shape, -1, dtype=torch.int64, device=total.device)

    def meet(self, piece: Met) -> None:
        best, place = self.best[piece.at], self.place[piece.at]
        score = piece.scores.amax(dim=-1)
        # To find the key takes ten times as long as the score, and few pieces beat all before.
        better = score > best
        best[better] = score[better]
        place[better] = piece.scores[better].argmax(dim=-1) + piece.keys.start

    def answer(self) -> Peak:
        """The greatest weights met."""
        return Peak((self.best - self.total).exp(), self.place)


class TopKeys:
    """Asks for the greatest weights of each row.

    Args:
        total: What each row is normalised by, in logarithms.
        count: How many of a row.
    """

    def __init__(self, total: Tensor, count: int) -> None:
        self.total, self.count = total, count
        shape = (*total.shape, count)
        self.best = total.new_full(shape, -torch.inf)
        self.places = torch.full(shape, -1, dtype=torch.int64, device=total.device)

    def meet(self, piece: Met) -> None:
        few = min(self.count, piece.scores.shape[-1])
        scores, keys = piece.scores.topk(few, dim=-1)
        both = torch.cat((self.best[piece.at], scores), dim=-1)
        every = torch.cat((self.places[piece.at], keys + piece.keys.start), dim=-1)
        self.best[piece.at], chosen = both.topk(self.count, dim=-1)
        self.places[piece.at] = every.gather(-1, chosen)

    def answer(self) -> Top:
        """The greatest weights met."""
        places = self.places.masked_fill(self.best == -torch.inf, -1)
        return Top((self.best - self.total[..., None]).exp(), places)
