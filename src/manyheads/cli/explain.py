"""``manyheads explain``: which backend an attention call takes, from its shapes alone."""

from typing import Literal

import torch

from manyheads.errors import DeviceError
from manyheads.functional import explain as explain_call
from manyheads.masks import parse_mask
from manyheads.shapes import check_count

DTypeName = Literal["float32", "float16", "bfloat16", "float64"]


def explain(
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int | None = None,
    q_len: int = 1024,
    kv_len: int | None = None,
    head_dim: int = 64,
    dtype: DTypeName = "float32",
    mask: str | None = None,
    bias: bool = False,
    softcap: float | None = None,
    sinks: bool = False,
    dropout: float = 0.0,
    grad: bool = False,
    device: str = "cpu",
    backend: str = "auto",
) -> None:
    """Tell which backend does an attention call, why, and at what memory.

    Args:
        batch: Sequences in a batch.
        heads: Query heads.
        kv_heads: Key and value heads; as many as query heads unless given.
        q_len: Queries, in tokens.
        kv_len: Keys, in tokens; as many as queries unless given.
        head_dim: Width of a head.
        dtype: Of queries, keys and values.
        mask: As written in Python, such as "Causal() & (Window(256) | Global(0))".
        bias: Add a bias to the scores, one for each head and pair.
        softcap: Bound of the scores.
        sinks: Give each head a sink logit.
        dropout: Of the weights, 0 to 1.
        grad: Ask for the gradient of all inputs.
        device: Where the call would run. On cpu nothing is allocated.
        backend: A backend by its name, to learn whether it can.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    kv_len = q_len if kv_len is None else kv_len
    counts = {"batch": batch, "heads": heads, "kv-heads": kv_heads, "head-dim": head_dim}
    for name, count in {**counts, "q-len": q_len, "kv-len": kv_len}.items():
        check_count(f"--{name}", count)
    settings = {"dtype": getattr(torch, dtype), "device": _place(device), "requires_grad": grad}
    explain_call(
        q=torch.empty(batch, heads, q_len, head_dim, **settings),
        k=torch.empty(batch, kv_heads, kv_len, head_dim, **settings),
        v=torch.empty(batch, kv_heads, kv_len, head_dim, **settings),
        mask=None if mask is None else parse_mask(mask),
        bias=torch.empty(1, heads, q_len, kv_len, **settings) if bias else None,
        softcap=softcap,
        sink_logits=torch.empty(heads, **settings) if sinks else None,
        dropout=dropout,
        backend=backend,
    )


def _place(device: str) -> torch.device:
    # Tensors without storage stand for those of the CPU, so that any length can be asked about.
    if device == "cpu":
        return torch.device("meta")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(
            f"--device must be one that torch can use here; got {device} ({reason}). Leave it out "
            f"for the CPU."
        ) from None
