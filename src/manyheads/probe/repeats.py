"""Keys that a query meets more than once in one softmax."""

from collections.abc import Callable

import torch
from torch import Tensor

from manyheads.positions import Bias
from manyheads.positions.bias import Place, rows_of

Count = Callable[[Tensor, Tensor], Tensor]
"""How often a query meets a key, of their positions, which broadcast."""


class Repeats(Bias):
    """What n equal scores do to a softmax, added to one: log n.

    Args:
        num_heads: Query heads.
        count: How often each query meets each key; where it is 0, the mask must hide the key.
    """

    def __init__(self, num_heads: int, count: Count) -> None:
        super().__init__(num_heads)
        self.count = count

    def forward(self, q: Tensor, k: Tensor, q_pos: Place, kv_pos: Place, *, scale: float) -> Tensor:
        queries, keys = rows_of(q_pos, q)[:, None, :, None], rows_of(kv_pos, k)[:, None, None]
        return self.count(queries, keys).clamp(min=1).to(torch.float32).log()
