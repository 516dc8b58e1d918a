"""A bias that reads positions, made plain for a kernel: further features, or a tensor."""

import torch
from torch import Tensor

from manyheads.functional.bias import PlacedBias
from manyheads.functional.call import Call


def without_object(call: Call) -> tuple[Call, Tensor | None]:
    """The same call with its bias folded into q and k where that is exact, else written out.

    Returns:
        The call, and what its log-sum-exp still lacks: (batch or 1, num_heads, q_len), or None.
    """
    if not isinstance(call.bias, PlacedBias):
        return call, None
    folded = call.bias.fold(call.q, call.k, call.mask, call.scale)
    if folded is None:
        return call._replace(bias=call.bias.write(call.q, call.k, call.scale)), None
    q, k = _join(folded.q, call.q), _join(folded.k, call.k)
    return call._replace(q=q, k=k, bias=None), folded.per_row


def _join(columns: Tensor, heads: Tensor) -> Tensor:
    columns = columns.to(heads.dtype).expand(*heads.shape[:3], -1)
    return torch.cat((columns, heads), dim=-1)
