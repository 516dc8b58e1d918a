"""Each mistake is named before any work, with its cure."""

import re
from collections.abc import Callable

import pytest
import torch

import manyheads as mh
from manyheads.errors import (
    BackendError,
    CacheError,
    DeviceError,
    DTypeError,
    ManyheadsError,
    MaskError,
    OptionError,
    PositionError,
    ShapeError,
)
from manyheads.layers.norm import norm_of
from manyheads.masks import bind

FORM = re.compile(r"must .+[;:] .*got .+\. [A-Z].+[.)]$", re.DOTALL)


def layer(**options: object) -> mh.MultiHeadAttention:
    return mh.MultiHeadAttention(8, 2, **options)


def x(batch: int = 2, length: int = 3, width: int = 8) -> torch.Tensor:
    return torch.zeros(batch, length, width)


def filled() -> mh.CrossCache:
    cache = mh.CrossCache()
    cache.append(torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 4))
    return cache


def full_of_another() -> mh.GrowingCache:
    cache = mh.GrowingCache()
    _OTHER(x(), cache=cache)
    return cache


_OTHER = layer()
KEEP = torch.ones(2, 3, dtype=torch.bool)

REFUSED: dict[str, tuple[type[ManyheadsError], str, Callable[[], object]]] = {
    "heads": (OptionError, r"num_heads must divide d_model=12; got num_heads=5. These do: 1, 2, 3, "
              r"4, 6, 12", lambda: mh.MultiHeadAttention(12, 5)),
    "kv heads": (OptionError, "num_kv_heads must divide num_heads=4; got num_kv_heads=3. These do: "
                 "1, 2, 4", lambda: mh.MultiHeadAttention(8, 4, num_kv_heads=3)),
    "no head": (OptionError, "num_heads must be an int", lambda: mh.MultiHeadAttention(8, 0)),
    "no width": (OptionError, "d_model must be an int", lambda: mh.MultiHeadAttention(0, 1)),
    "half a head": (OptionError, "head_dim must be an int", lambda: layer(head_dim=2.5)),
    "dropout": (OptionError, r"dropout must be a number in \[0, 1\)", lambda: layer(dropout=1.0)),
    "output dropout": (OptionError, "output_dropout must", lambda: layer(output_dropout=-0.1)),
    "rotary": (OptionError, r"rotary must turn heads of width head_dim=4; got rotary.head_dim=8",
               lambda: layer(rotary=mh.Rotary(8))),
    "rotary by name": (OptionError, r"rotary must be an object Rotary\(...\) or None; got "
                       "rotary='rope'", lambda: layer(rotary="rope")),
    "rotary of latents": (OptionError, r"rotary must be an object Rotary\(...\) or None; got "
                          "rotary=8", lambda: mh.LatentAttention(8, 2, 4, head_dim=4, rotary=8)),
    "norm": (OptionError, "qk_norm must be None, 'rms' or 'layer'", lambda: layer(qk_norm="l2")),
    "scores": (OptionError, r"scores must be an object Scores\(...\); got scores=\{'softcap': 5",
               lambda: layer(scores={"softcap": 5.0})),
    "scale": (OptionError, "scale must be a finite number; got scale=nan",
              lambda: mh.Scores(scale=float("nan"))),
    "softcap": (OptionError, "softcap must be a finite number above 0; got softcap=0",
                lambda: mh.Scores(softcap=0.0)),
    "gate": (OptionError, "gate must be None, 'head' or 'channel'; got gate=True",
             lambda: layer(gate=True)),
    "coordinates without a rotary": (
        PositionError, "coordinates must go to a layer with a rotary",
        lambda: layer()(x(), coordinates=torch.zeros(3, 2))),
    "init": (OptionError, "init must be 'xavier', 'normal' or 'torch'", lambda: layer(init="he")),
    "projections": (OptionError, "projections must be 'separate' or 'packed'",
                    lambda: layer(projections="joined")),
    "packed widths": (OptionError, "packed projections must read streams of one width; got widths "
                      r"\[4, 8\]", lambda: layer(projections="packed", d_context=4)),
    "activation": (OptionError, "activation must be one of relu",
                   lambda: mh.FeedForward(8, 8, activation="tanh")),  # type: ignore[arg-type]
    "place of norm": (OptionError, "norm must be 'post' or 'pre'",
                      lambda: mh.EncoderLayer(8, 2, norm="both")),  # type: ignore[arg-type]
    "no tensor": (DTypeError, r"x must be a torch.Tensor; got x=list", lambda: layer()([[1.0]])),
    "two dimensions": (ShapeError, r"x must be \(batch, length, 8\); got shape \(3, 8\)",
                       lambda: layer()(x()[0])),
    "width": (ShapeError, r"x must be \(batch, length, 8\)", lambda: layer()(x(width=4))),
    "width of context": (ShapeError, r"context must be \(batch, length, 6\)",
                         lambda: layer(d_context=6)(x(), x())),
    "width of value": (ShapeError, r"value must be \(batch, length, 6\)",
                       lambda: layer(d_value=6)(x(), x(), x())),
    "batch of context": (ShapeError, "x and context must have one batch size; got x=2, context=1",
                         lambda: layer()(x(), x(1))),
    "length of value": (ShapeError, "value must have the context's batch and length",
                        lambda: layer()(x(), x(), x(length=4))),
    "value alone": (ShapeError, "value must have the context's", lambda: layer()(x(), value=x())),
    "no context": (ShapeError, "context must be given to a layer that reads another width",
                   lambda: layer(d_context=6)(x())),
    "ids": (DTypeError, "x must be a floating-point tensor; got x=torch.int64",
            lambda: layer()(x().long())),
    "dtype": (DTypeError, "x must have the layer's dtype, torch.float32; got x=torch.float64",
              lambda: layer()(x().double())),
    "dtype of context": (DTypeError, "context must have the layer's dtype",
                         lambda: layer()(x(), x().half())),
    "device": (DeviceError, "x must be where the layer is, on cpu; got x=meta",
               lambda: layer()(x().to("meta"))),
    "numbers as mask": (DTypeError, "a mask tensor must be bool",
                        lambda: layer()(x(), mask=torch.ones(3, 3))),
    "mask of three": (MaskError, "a mask tensor must be",
                      lambda: layer()(x(), mask=torch.ones(2, 3, 3).bool())),
    "length of mask": (MaskError, r"a mask tensor must be \(\.\.\., q_len or 1, kv_len\)",
                       lambda: layer()(x(), mask=torch.ones(3, 4).bool())),
    "padding of others": (MaskError, r"padding must be \(batch, length\) = \(2, 3\)",
                          lambda: layer()(x(), mask=mh.Padding(KEEP[:, :2]))),
    "heads of mask": (MaskError, "PerHead must have a mask for each of num_heads=2",
                      lambda: layer()(x(), mask=mh.PerHead((mh.Causal(),)))),
    "settled for others": (MaskError, "a settled mask must fit its call; got one for 4 queries",
                           lambda: layer()(x(), mask=bind(mh.Causal(), 2, 4, 4))),
    "settled for another batch": (
        MaskError,
        "a settled mask must fit its call; got one for a batch of 3, and batch=2",
        lambda: layer()(x(), mask=bind(mh.Padding(lengths=torch.tensor([1, 2, 3])), 3, 3, 3)),
    ),
    "settled, and positions": (MaskError, "a settled mask must come alone",
                               lambda: layer()(x(), mask=bind(None, 2, 3, 3), positions=0)),
    "settled for another context": (MaskError, "a settled mask must fit its call",
                                    lambda: layer()(x(), x(), mask=bind(None, 2, 3, 4))),
    "positions": (PositionError, r"positions must be \(length,\) or \(batch, length\)",
                  lambda: layer()(x(), positions=torch.arange(4))),
    "positions of a float": (PositionError, "positions must be integers",
                             lambda: layer()(x(), positions=torch.zeros(3))),
    "a context without queries' places": (
        PositionError, "positions must be given where the mask reads those of a context",
        lambda: layer()(x(), x(), mask=mh.Causal(), context_positions=torch.arange(3))),
    "rotary to a longer context": (
        PositionError, "positions must be given where rotary meets a context of another length",
        lambda: layer(rotary=mh.Rotary(4))(x(), x(length=5))),
    "no cache": (CacheError, "cache must be one of manyheads.cache; got cache=dict",
                 lambda: layer()(x(), cache={})),
    "text in a context's cache": (CacheError, "a CrossCache must be filled before it is read",
                                  lambda: layer()(x(), cache=mh.CrossCache())),
    "context in a text's cache": (CacheError, "attention to a context must have a CrossCache",
                                  lambda: layer()(x(), x(), cache=mh.GrowingCache())),
    "another context": (CacheError, r"cache must hold this context, of \(batch, length\) = \(2, 3\)"
                        r"; got one of \(2, 5\)", lambda: layer()(x(), x(), cache=filled())),
    "context of another batch": (CacheError, "cache must hold this context",
                                 lambda: layer()(x(1), cache=filled())),
    "another layer's cache": (CacheError, "a cache must serve one layer; got one with 3 tokens of "
                              "another layer", lambda: layer()(x(), cache=full_of_another())),
    "decoder without context": (ShapeError, "context must be given until a cache holds it",
                                lambda: mh.DecoderLayer(8, 2, 8)(x())),
    "decoder's cache not filled": (
        ShapeError, "context must be given until a cache holds it",
        lambda: mh.DecoderLayer(8, 2, 8)(x(), cache=mh.LayerCache.new())),
    "decoder with a text's cache": (
        CacheError, "cache of a decoder layer must be a LayerCache; got cache=GrowingCache",
        lambda: mh.DecoderLayer(8, 2, 8)(x(), x(), cache=mh.GrowingCache())),
    "encoder with a decoder's cache": (
        CacheError, "cache must be one of manyheads.cache; got cache=LayerCache",
        lambda: mh.EncoderLayer(8, 2, 8)(x(), cache=mh.LayerCache.new())),
    "an activation that is no text": (
        OptionError, r"activation must be one of .*got activation=\['relu'\]",
        lambda: mh.FeedForward(8, 8, activation=["relu"])),
    "a norm that is no text": (OptionError, r"a norm must be 'layer' or 'rms'; got \['rms'\]",
                               lambda: norm_of(["rms"])),
    "a backend that is no text": (
        BackendError, r"backend must be one of .*got backend=\['fused'\]",
        lambda: mh.attention(*[torch.zeros(1, 1, 2, 4)] * 3, backend=["fused"])),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_named_with_its_cure(name: str) -> None:
    kind, message, action = REFUSED[name]
    with pytest.raises(kind, match=message) as caught:
        action()
    assert FORM.search(str(caught.value)), f"not of the house's form: {caught.value}"
