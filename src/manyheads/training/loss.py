"""The loss of real tokens, however a batch is cut."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def token_loss(logits: Tensor, target: Tensor, *, ignore_id: int = 0) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropy of the real tokens, and count them.

    Sum and count are given apart because only sums add up: over several microbatches the loss is
    ``sum(sums) / sum(counts)``. A mean of means would weigh the tokens of short batches more.

    Args:
        logits: (batch, length, vocab).
        target: (batch, length) ids; those equal to ``ignore_id`` count for nothing.
        ignore_id: The id of padding.

    Returns:
        The sum in fp32 or wider, and the count of real tokens. Without a real token both are 0,
        and so is every gradient.

    Example:
        >>> logits = torch.zeros(1, 3, 4)  # four ids, equally likely: log 4 for each real token
        >>> total, tokens = token_loss(logits, torch.tensor([[2, 3, 0]]))
        >>> round(float(total / tokens), 4), int(tokens)
        (1.3863, 2)
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    total = F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=ignore_id, reduction="sum"
    )
    return total, (target != ignore_id).sum()
