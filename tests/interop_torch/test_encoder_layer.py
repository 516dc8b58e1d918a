"""`EncoderLayer` does what torch.nn.TransformerEncoderLayer does, given its weights."""

import pytest
import torch
from tests.interop_torch.twins import (
    Twins,
    by_encoder_names,
    close,
    every_dtype,
    every_kind,
    masks,
    random,
)
from torch import nn

import manyheads as mh

BATCH, HEADS, WIDTH, HIDDEN, LENGTH = 3, 2, 12, 20, 7


def twins(dtype: torch.dtype, norm: str, activation: str, bias: bool = True) -> Twins:
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=activation, norm_first=norm == "pre",
        bias=bias, batch_first=True, dtype=dtype,
    )  # fmt: skip
    ours = mh.EncoderLayer(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=activation, norm=norm, bias=bias, dtype=dtype
    )
    return Twins(ours, theirs, by_encoder_names)


@every_dtype
@every_kind
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_agrees(activation: str, norm: str, kind: str, dtype: torch.dtype) -> None:
    said = masks(kind, BATCH, HEADS, LENGTH, LENGTH)
    attn = said.attn.to(dtype) if kind == "float" else said.attn
    pair, mask = twins(dtype, norm, activation), said.ours(HEADS)
    pair.agree(
        lambda x: pair.ours(x, mask=mask),
        lambda x: pair.theirs(x, attn, said.padding, is_causal=kind == "causal"),
        random(BATCH, LENGTH, WIDTH, dtype=dtype),
        real=said.real,
    )


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_stack_agrees_where_torch_takes_its_fast_path(norm: str) -> None:
    layer = twins(torch.float64, norm, "relu").theirs
    theirs = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(WIDTH, dtype=torch.float64)).eval()
    ours = [mh.EncoderLayer(WIDTH, HEADS, HIDDEN, norm=norm, dtype=torch.float64) for _ in "123"]
    for mine, yours in zip(ours, theirs.layers, strict=True):
        mine.eval().load_state_dict(by_encoder_names(yours.state_dict()))
    x = random(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    padding = torch.arange(LENGTH) >= torch.tensor([3, 5, 2])[:, None]
    with torch.no_grad():
        expected = theirs(x, src_key_padding_mask=padding)
        for layer in ours:
            x = layer(x, mask=mh.from_key_padding_mask(padding))
        assert x.shape == (BATCH, LENGTH, WIDTH)
        close(theirs.norm(x)[~padding], expected[~padding])
