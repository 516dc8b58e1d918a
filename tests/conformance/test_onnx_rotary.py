"""Every case of the ONNX operator RotaryEmbedding, through the public functions.

`as_ours` says, convention by convention, how ONNX differs from this library.
"""

import pytest
import torch
from tests.conformance.onnx_cases import Case, cases
from torch import Tensor

from manyheads.positions import rotate

CASES = cases("RotaryEmbedding")
KNOWN = {"interleaved", "num_heads", "rotary_embedding_dim"}


def as_ours(case: Case) -> Tensor:
    assert case.attributes.keys() <= KNOWN
    attributes, inputs = case.attributes, case.inputs
    x, cos, sin = inputs["X"], inputs["cos_cache"], inputs["sin_cache"]

    # Its caches hold a row for every position there may be; ours hold a row for every token.
    if "position_ids" in inputs:
        cos, sin = cos[inputs["position_ids"]], sin[inputs["position_ids"]]

    # Its rotary_embedding_dim repeats the width of the caches, which is all that ours reads. 0 is
    # the default, and means the whole head.
    width = attributes.get("rotary_embedding_dim", 0)
    assert width in (0, 2 * cos.shape[-1])

    # Its integer is our word.
    pairs = "interleaved" if attributes.get("interleaved", 0) else "halves"

    # Three dimensions are (batch, length, heads * width), as modules take them; ours have heads.
    if x.ndim == 4:
        return rotate(x, cos, sin, pairs=pairs)
    heads = x.unflatten(-1, (attributes["num_heads"], -1)).transpose(1, 2)
    return rotate(heads, cos, sin, pairs=pairs).transpose(1, 2).flatten(2)


def test_the_package_brings_its_eight_cases() -> None:
    assert len(CASES) == 8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rotate_agrees_with_onnx(case: Case) -> None:
    case.check("Y", as_ours(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_right_under_tables_that_are_no_rotation(case: Case) -> None:
    # ONNX draws cosines and sines at random, so a backward that assumed cos² + sin² = 1 would fail.
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in case.inputs.items()}
    x = inputs["X"].requires_grad_()
    doubled = Case(case.name, case.attributes, {**inputs, "X": x}, {}, 0, 0)
    assert torch.autograd.gradcheck(lambda _: as_ours(doubled), x, fast_mode=True)
