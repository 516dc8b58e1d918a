"""Calls of torch's FlexAttention, whose masks and biases are functions of indices."""

from typing import Any

import torch
from torch import Tensor

from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder

NAME = "flex_attention"


def record_flex(recorder: Recorder, args: tuple[Any, ...], output: Tensor) -> None:
    """Record a call by what torch's operator is handed."""
    recorder.record("flex", lambda: _call(*args[:6]), Mixed(output))


def _call(
    q: Tensor, k: Tensor, v: Tensor, change: Any, block_mask: tuple[Any, ...], scale: float
) -> Call:
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    batch, head, row, column = torch.meshgrid(
        *(torch.arange(size, device=q.device) for size in sizes), indexing="ij"
    )
    seen = block_mask[-1](batch, head, row, column)
    # A bias is what a score of 0 becomes; what else a function does, the output betrays.
    bias = change(torch.zeros(sizes, dtype=q.dtype, device=q.device), batch, head, row, column)
    return prepare(
        q, k, v, torch.as_tensor(seen, device=q.device).expand(sizes), bias=bias.detach(),
        scale=scale, softcap=None, sink_logits=None, dropout=0.0, q_pos=None, kv_pos=None,
        need="weights",
    )  # fmt: skip
