"""Every case of the ONNX operator LinearAttention, through the public functions.

`as_ours` says, convention by convention, how ONNX differs from this library.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.conformance.onnx_cases import Case, cases, named, split
from torch import Tensor

import manyheads as mh
from manyheads.functional import linear_attention_with_state, recurrent_attention

CASES = cases("LinearAttention")
LINEAR = [case for case in CASES if case.attributes.get("update_rule") == b"linear"]
KNOWN = {"update_rule", "q_num_heads", "kv_num_heads", "scale", "chunk_size"}


@dataclass(frozen=True)
class Ours:
    """A case in our words: what `recurrent_attention` takes."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]


def as_ours(case: Case) -> Ours:
    assert case.attributes.keys() <= KNOWN
    attributes, inputs = case.attributes, case.inputs
    kv_heads = attributes["kv_num_heads"]

    # (batch, length, heads * width), as modules take them; ours have heads.
    q = split(inputs["query"], attributes["q_num_heads"])
    k, v = split(inputs["key"], kv_heads), split(inputs["value"], kv_heads)

    # Its four rules are ours by what is given: decay gates, beta corrects. Under the delta rule it
    # reads after it has forgotten, and so do we.
    rule = attributes.get("update_rule", b"gated_delta").decode()
    assert ("gated" in rule) == ("decay" in inputs)
    assert ("delta" in rule) == ("beta" in inputs)

    options: dict[str, Any] = {}
    # One number a head, or one for each dimension of a key; ours says which by its last axis.
    if "decay" in inputs:
        options["decay"] = split(inputs["decay"], kv_heads)
    # One number a head, or one for all heads.
    if "beta" in inputs:
        options["beta"] = split(inputs["beta"], inputs["beta"].shape[-1])
    if "past_state" in inputs:
        options["state"] = inputs["past_state"]
    # 0 is its default, and means the root that None means to us.
    if attributes.get("scale", 0.0):
        options["scale"] = attributes["scale"]
    # chunk_size says how to compute, not what.
    return Ours(q, k, v, options)


def merged(output: Tensor) -> Tensor:
    return output.transpose(1, 2).flatten(2)


def test_the_package_brings_its_14_cases_of_which_two_are_plain() -> None:
    assert (len(CASES), len(LINEAR)) == (14, 2)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_output_and_state_are_those_of_onnx(case: Case) -> None:
    ours = as_ours(case)
    output, state = recurrent_attention(ours.q, ours.k, ours.v, mh.Causal(), **ours.options)
    case.check("output", merged(output))
    # Its state comes back in the dtype of the input; ours stays in fp32.
    case.check("present_state", state.to(case.outputs["present_state"].dtype))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    ours = as_ours(case)
    names = [name for name, value in ours.options.items() if isinstance(value, Tensor)]
    tensors = [ours.q, ours.k, ours.v, *(ours.options[name] for name in names)]
    rest = {name: value for name, value in ours.options.items() if name not in names}

    def call(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        options = rest | dict(zip(names, given, strict=True))
        return recurrent_attention(q, k, v, mh.Causal(), **options)

    inputs = [x.double().requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("case", LINEAR, ids=named)
def test_linear_attention_is_the_same_before_its_normaliser(case: Case) -> None:
    """`linear_attention` divides by a sum of features; what it keeps is this state beside it.

    ONNX's rule has no feature map and no normaliser, but a scale: outputs agree once ours is
    multiplied by the sum and by that scale.
    """
    ours = as_ours(case)
    q, k, v = (x.double() for x in (ours.q, ours.k, ours.v))
    identity = torch.nn.Identity()
    output, state = linear_attention_with_state(q, k, v, mh.Causal(), feature=identity)
    total = (q @ k.mT).tril().sum(dim=-1, keepdim=True)
    found = (output * total * q.shape[-1] ** -0.5).float()
    case.check("output", merged(found))
    case.check("present_state", state.sums[..., :-1].float())
