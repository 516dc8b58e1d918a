"""A fact that the model cannot have is refused before any work, with the rule and the cure."""

import re

import pytest
import torch
from tests.museum.exhibit import stream
from tests.museum.styles import Cross, Fused
from torch import Tensor, nn

import manyheads as mh
from manyheads.doctor import CacheFacts, Facts, assert_padding_invariant, examine
from manyheads.errors import ExamineError


class Named(nn.Module):
    """Answers by name."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x, "attn": x.softmax(-1)}


class Numbered(nn.Module):
    """Answers by number, and takes more than it names."""

    def forward(self, x: Tensor, **more: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.softmax(-1)


@pytest.mark.parametrize(
    ("model", "facts", "message"),
    [
        (
            Fused(),
            Facts(padding="typo"),
            "padding must name an argument of the model; got padding='typo'. It takes x, "
            "padding_mask. Name one of these, or leave the fact out.",
        ),
        (Fused(), Facts(padding="pading_mask"), "padding_mask. Did you mean 'padding_mask'?"),
        (Fused(), Facts(mask=2), "mask must name an argument of the model; got mask=2. It takes x"),
        (Fused(), Facts(x="xs"), "x must name an argument of the model; got x='xs'."),
        (
            Cross(),
            Facts(context="context"),
            "context must name an argument that the example input gives; got context='context', "
            "which was not given. Give it to examine(model, ...).",
        ),
        (
            Fused(),
            Facts(cache=CacheFacts("past")),
            "cache.argument must name an argument of the model; got cache.argument='past'.",
        ),
        (
            mh.MultiHeadAttention(24, 4),
            Facts(cache=CacheFacts("cache", output=1, start=mh.GrowingCache)),
            "cache.output must name a part of the output; got cache.output=1. It has none with a "
            "name: leave the fact out.",
        ),
        (
            Named(),
            Facts(out="logit"),
            "out must name a part of the output; got out='logit'. It has logits, attn. Did you "
            "mean 'logits'?",
        ),
        (Numbered(), Facts(weights=2), "got weights=2. It has 0, 1. Name one of these, or leave"),
    ],
)
def test_a_fact_names_what_the_model_has(model: nn.Module, facts: Facts, message: str) -> None:
    with pytest.raises(ExamineError, match=re.escape(message)):
        examine(model, stream(), facts=facts)


def test_an_argument_that_does_not_exist_is_refused_before_the_model_is_called() -> None:
    class Never(Fused):
        def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            raise AssertionError("called")

    with pytest.raises(ExamineError, match="padding must name an argument of the model"):
        examine(Never(), stream(), facts=Facts(padding="typo"))


def test_asserts_refuse_it_too() -> None:
    with pytest.raises(ExamineError, match="padding must name an argument of the model"):
        assert_padding_invariant(Fused(), stream(), facts=Facts(padding="typo", real=True))


def test_names_of_a_model_that_takes_any_are_taken_at_their_word() -> None:
    report = examine(Numbered(), stream(), facts=Facts(padding="keep", real=True))
    assert report.codes == ("mask_lost",)  # it takes the argument, and drops it


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (Facts(real=2), "real must be a value that the example's padding_mask holds; got real=2. "
         "It holds 0, 1."),
        (Facts(padding=1, real=-1.0), "the example's 1 holds; got real=-1.0. It holds 0, 1."),
    ],
)  # fmt: skip
def test_a_mark_stands_in_the_mask_of_the_example(facts: Facts, message: str) -> None:
    keep = torch.ones(2, 13, dtype=torch.long)
    keep[1, 9:] = 0
    with pytest.raises(ExamineError, match=re.escape(message)):
        examine(Fused(), stream(), keep, facts=facts)


def test_arguments_are_named_or_counted() -> None:
    keep = torch.ones(2, 13, dtype=torch.bool)
    for padding in ("padding_mask", 1, "1"):
        report = examine(Fused(), stream(), keep, facts=Facts(padding=padding, real=True))
        assert report.verdict("padding_leak").says == "pass"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"padding": torch.ones(2, 3)}, "padding must be the name of an argument, or its place "
         "counted from 0; got padding=Tensor. Leave it out where it is not known."),
        ({"padding": True}, "or its place counted from 0; got padding=True."),
        ({"x": -1}, "x must be the name of an argument, or its place counted from 0; got x=-1."),
        ({"out": 0.5}, "out must be the name of a part of the output"),
        ({"causal": 1}, "causal must be one of True, False, 'prefix'; got causal=1."),
        ({"causal": torch.ones(2)}, "one of True, False, 'prefix'; got causal=Tensor."),
        ({"ordered": "yes"}, "ordered must be one of True, False; got ordered='yes'."),
        ({"window": 0}, "window must be a whole number from 1 on; got window=0."),
        ({"num_heads": "4"}, "num_heads must be a whole number from 1 on; got num_heads='4'."),
        ({"prefix": -1}, "prefix must be a whole number from 0 on; got prefix=-1."),
        ({"scale": 0}, "scale must be a number above 0; got scale=0."),
        ({"real": "one"}, "real must be a number or a bool; got real='one'."),
        ({"cache": "past"}, "cache must be CacheFacts; got cache='past'."),
        ({"reference": "gpt2"}, "reference must be a torch.nn.Module; got reference='gpt2'."),
    ],
)  # fmt: skip
def test_a_fact_is_of_its_kind(facts: dict[str, object], message: str) -> None:
    with pytest.raises(ExamineError, match=re.escape(message)):
        Facts(**facts)  # type: ignore[arg-type]


def test_a_cache_is_declared_by_what_makes_it() -> None:
    message = "start must be a function; got start=GrowingCache. Give the class of the cache or a"
    with pytest.raises(ExamineError, match=message):
        CacheFacts("cache", start=mh.GrowingCache())  # type: ignore[arg-type]
