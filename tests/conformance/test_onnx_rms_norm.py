"""Every case of the ONNX operator RMSNormalization, through the norm of our layers."""

import pytest
import torch
from tests.conformance.onnx_cases import Case, cases
from torch import Tensor

from manyheads.layers.norm import RMSNorm

CASES = cases("RMSNormalization")


def as_ours(case: Case) -> Tensor:
    assert case.attributes.keys() <= {"axis", "epsilon"}
    x, scale = case.inputs["X"], case.inputs["scale"]

    # Its axis is the first that is normalised; ours are named by their widths.
    norm = RMSNorm(scale.shape, eps=case.attributes.get("epsilon", 1e-5), dtype=scale.dtype)
    assert scale.shape == x.shape[case.attributes.get("axis", -1) :]
    with torch.no_grad():
        norm.weight.copy_(scale)
    return norm(x).detach()


def test_the_package_brings_its_nineteen_cases() -> None:
    assert len(CASES) == 19


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_our_norm_agrees_with_onnx(case: Case) -> None:
    case.check("Y", as_ours(case))
