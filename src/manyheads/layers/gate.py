"""A gate between the heads' outputs and their projection."""

from typing import Literal

import torch
from torch import Tensor, nn

from manyheads.errors import OptionError

Gate = Literal["head", "channel"]


def make_gate(
    gate: Gate | None,
    d_model: int,
    num_heads: int,
    head_dim: int,
    *,
    bias: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Linear | None:
    """The projection of a stream to its gates, of the kind that ``gate`` names."""
    if gate is None:
        return None
    if gate not in ("head", "channel"):
        raise OptionError(
            f"gate must be None, 'head' or 'channel'; got gate={gate!r}. Take 'channel' to gate "
            f"every feature of a head by itself, 'head' to gate all of them alike."
        )
    width = num_heads * (head_dim if gate == "channel" else 1)
    return nn.Linear(d_model, width, bias=bias, device=device, dtype=dtype)


def gated(mixed: Tensor, logits: Tensor) -> Tensor:
    """What the gates let through.

    Args:
        mixed: (batch, q_len, heads, head_dim), what the heads took.
        logits: (batch, q_len, heads) or (batch, q_len, heads * head_dim).

    Source:
        Qiu et al. 2025, section 2.2 (arXiv:2505.06708).
    """
    return mixed * logits.sigmoid().unflatten(-1, (mixed.shape[2], -1))
