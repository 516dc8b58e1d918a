"""Softmax over scores that come in pieces: what must be kept of each row."""

import torch
from torch import Tensor

_NOTHING = -1e4
"""Its exponential is 0 in every dtype, and its product with 0 is 0, which that of -inf is not."""


class Running:
    """Log-sum-exp and entropy of rows of scores, met in pieces.

    Scores are centred at the greatest of their row as they are met, so that neither loses digits
    where a row's mass sits on one key.

    Args:
        shape: The rows, such as (batch, heads, q_len).
        like: A tensor of their device; sums are kept in fp32, or in its float64.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.peak = torch.full(shape, -torch.inf, dtype=dtype, device=like.device)
        self.total = torch.zeros_like(self.peak)  # of exp(score - peak)
        self.moment = torch.zeros_like(self.peak)  # of exp(score - peak) * (score - peak)

    def meet(self, at: tuple[slice, ...], scores: Tensor) -> None:
        """Take in scores (..., keys) of the rows at ``at``."""
        old, total, moment = self.peak[at], self.total[at], self.moment[at]
        peak = torch.maximum(old, scores.amax(dim=-1))
        base = peak.masked_fill(peak == -torch.inf, 0.0)
        centred = (scores - base[..., None]).clamp_(min=_NOTHING)
        exponentials = centred.exp()
        step = (old - base).clamp_(min=_NOTHING)
        shrunk = step.exp()
        grown = shrunk * total + exponentials.sum(dim=-1)
        moved = shrunk * (moment + total * step) + centred.mul_(exponentials).sum(dim=-1)
        self.peak[at], self.total[at], self.moment[at] = peak, grown, moved

    def lse(self) -> Tensor:
        """Log-sum-exp of each row; -inf for a row that sees nobody."""
        return self.peak + self.total.log()

    def entropy(self) -> Tensor:
        """Entropy of each row in nats; 0 for a row that sees nobody."""
        empty = self.total == 0
        total = self.total.masked_fill(empty, 1.0)
        return (total.log() - self.moment / total).clamp_(min=0.0)
