"""Every case of the ONNX operator SwiGLU, through a feed-forward network of ours.

The operator is the middle of the network: what it gates and what the gate is stand side by side in
the stream, from where matrices of ones and zeros take them.
"""

import pytest
import torch
from tests.conformance.onnx_cases import Case, cases
from torch import Tensor

import manyheads as mh

CASES = cases("SwiGLU")


def as_ours(case: Case) -> Tensor:
    assert case.attributes.keys() <= {"alpha"}
    a, b = case.inputs.values()
    width, alpha = a.shape[-1], case.attributes.get("alpha", 1.0)
    layer = mh.FeedForward(2 * width, width, activation="swiglu", bias=False, dtype=a.dtype)
    one, none = torch.eye(width), torch.zeros(width, width)
    with torch.no_grad():
        # A gate a * sigmoid(alpha * a) is silu(alpha * a) / alpha, and both are linear maps.
        layer.gate.weight.copy_(torch.cat((alpha * one, none), dim=1))
        layer.up.weight.copy_(torch.cat((none, one), dim=1))
        layer.down.weight.copy_(torch.cat((one / alpha, none)))
    return layer(torch.cat((a, b), dim=-1)[None]).detach()[0, :, :width]


def test_the_package_brings_its_three_cases() -> None:
    assert len(CASES) == 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_our_network_agrees_with_onnx(case: Case) -> None:
    (name,) = case.outputs
    case.check(name, as_ours(case))
