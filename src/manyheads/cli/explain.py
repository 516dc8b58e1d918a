"""``manyheads explain``: which backend an attention call takes, from its shapes alone."""

from typing import Annotated, Literal

import torch
from cyclopts import Parameter

from manyheads.errors import OptionError
from manyheads.functional import explain as explain_call
from manyheads.masks import parse_mask

DTypeName = Literal["float32", "float16", "bfloat16", "float64"]
Given = Parameter(show_default=True)


def explain(
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int | None = None,
    q_len: int = 1024,
    kv_len: int | None = None,
    head_dim: int = 64,
    value_dim: int | None = None,
    dtype: DTypeName = "float32",
    mask: str | None = None,
    bias: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    dropout: float = 0.0,
    grad: bool = False,
    device: str = "cpu",
    backend: str = "auto",
) -> None:
    """Tell which backend does an attention call, why, and at what memory.

    Parameters
    ----------
    batch
        Sequences in a batch.
    heads
        Query heads.
    kv_heads
        Key and value heads; as many as query heads unless given.
    q_len
        Queries, in tokens.
    kv_len
        Keys, in tokens; as many as queries unless given.
    head_dim
        Width of queries and keys.
    value_dim
        Width of values; head_dim unless given.
    dtype
        Of queries, keys and values.
    mask
        As written in Python, for one "Causal() & (Window(256) | Global(0))".
    bias
        Add a bias to the scores, (heads, q_len, kv_len).
    scale
        Multiplier of the scores; head_dim ** -0.5 unless given.
    softcap
        Bound of the scores, as in Gemma 2.
    sinks
        Give each head a sink logit, as in gpt-oss.
    dropout
        On the weights, 0 to 1.
    grad
        Ask for the gradient of everything.
    device
        Where the call would run; nothing is allocated there.
    backend
        A backend by name, to learn whether it can.
    """
    ...
