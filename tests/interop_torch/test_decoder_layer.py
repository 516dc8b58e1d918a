"""`DecoderLayer` does what torch.nn.TransformerDecoderLayer does, given its weights."""

import pytest
import torch
from tests.interop_torch.twins import Twins, by_decoder_names, every_dtype, masks, random
from torch import nn

import manyheads as mh

BATCH, HEADS, WIDTH, HIDDEN = 3, 2, 12, 20


def twins(dtype: torch.dtype, norm: str, activation: str) -> Twins:
    theirs = nn.TransformerDecoderLayer(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=activation, norm_first=norm == "pre",
        batch_first=True, dtype=dtype,
    )  # fmt: skip
    ours = mh.DecoderLayer(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=activation, norm=norm, dtype=dtype
    )
    return Twins(ours, theirs, by_decoder_names)


@every_dtype
@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
@pytest.mark.parametrize("kind", ["causal", "causal and padding", "random"])
@pytest.mark.parametrize("memory_kind", ["nothing", "padding", "random and padding"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 8), (8, 5)])
def test_a_layer_agrees(
    q_len: int,
    kv_len: int,
    memory_kind: str,
    kind: str,
    activation: str,
    norm: str,
    dtype: torch.dtype,
) -> None:
    said = masks(kind, BATCH, HEADS, q_len, q_len)
    memory = masks(memory_kind, BATCH, HEADS, q_len, kv_len, seed=6)
    pair = twins(dtype, norm, activation)
    mask, context_mask = said.ours(HEADS), memory.ours(HEADS)
    pair.agree(
        lambda x, context: pair.ours(x, context, mask=mask, context_mask=context_mask),
        lambda x, context: pair.theirs(
            x,
            context,
            tgt_mask=said.attn,
            memory_mask=memory.attn,
            tgt_key_padding_mask=said.padding,
            memory_key_padding_mask=memory.padding,
        ),
        random(BATCH, q_len, WIDTH, dtype=dtype),
        random(BATCH, kv_len, WIDTH, dtype=dtype, seed=1),
        real=said.real,
    )
