"""Every case of the ONNX operator FlexAttention, through the public functions.

`as_ours` says, graph by graph, what of `attention` an ONNX subgraph means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from tests.conformance.onnx_cases import Case, cases, named
from torch import Tensor

import manyheads as mh
from manyheads.errors import BackendError

CASES = cases("FlexAttention")
MODIFIED = [case for case in CASES if "mod" in " ".join(case.attributes)]


@dataclass(frozen=True)
class Ours:
    """A case in our words: what `attention` takes, and what its output is multiplied by."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    share: float = 1.0


def number(graph: onnx.GraphProto, name: str) -> float:
    (found,) = (x for x in graph.initializer if x.name == name)
    return numpy_helper.to_array(found).item()


def steps(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


def bias(case: Case, graph: onnx.GraphProto) -> dict[str, Any]:
    # scores + number: to us a bias, which may be of any shape that broadcasts.
    assert steps(graph) == ["Add"]
    return {"bias": torch.full((1, 1, 1, 1), number(graph, "bias"))}


def causal(case: Case, graph: onnx.GraphProto) -> dict[str, Any]:
    # -inf where q_idx < k_idx, both counted from 0: the upper left, where ours are the last of the
    # keys. There are as many of both here; positions say it in any case.
    assert steps(graph)[-2:] == ["GreaterOrEqual", "Where"]
    q_len, kv_len = case.inputs["Q"].shape[2], case.inputs["K"].shape[2]
    positions = {"q_pos": torch.arange(q_len), "kv_pos": torch.arange(kv_len)}
    return {"mask": mh.Causal(), **positions}


def softcap(case: Case, graph: onnx.GraphProto) -> dict[str, Any]:
    assert steps(graph) == ["Div", "Tanh", "Mul"]
    return {"softcap": number(graph, "cap")}


def relative(case: Case, graph: onnx.GraphProto) -> dict[str, Any]:
    # scores + (q_idx - k_idx): to us a bias, a tensor (q_len, kv_len).
    assert steps(graph)[-3:] == ["Sub", "Cast", "Add"]
    q_len, kv_len = case.inputs["Q"].shape[2], case.inputs["K"].shape[2]
    return {"bias": (torch.arange(q_len)[:, None] - torch.arange(kv_len)).float()}


SCORE_MODS: dict[str, Callable[[Case, onnx.GraphProto], dict[str, Any]]] = {
    "score_mod_bias": bias,
    "score_mod_causal_mask": causal,
    "score_mod_soft_cap": softcap,
    "score_mod_relative_positional": relative,
}


def as_ours(case: Case) -> Ours:
    assert case.attributes.keys() <= {"scale", "score_mod", "prob_mod"}
    options: dict[str, Any] = {}
    if "scale" in case.attributes:
        options["scale"] = case.attributes["scale"]
    # A subgraph may do anything to the scores; ours is a mask, a bias or a softcap, which kernels
    # know. Each of the graphs that the suite has is one of them.
    if "score_mod" in case.attributes:
        graph = case.attributes["score_mod"]
        options |= SCORE_MODS[graph.name](case, graph)
    # A subgraph may do anything to the weights too. We have no such step: the one graph of the
    # suite multiplies them by a number, which multiplies the output.
    share = 1.0
    if "prob_mod" in case.attributes:
        graph = case.attributes["prob_mod"]
        assert steps(graph) == ["Mul"]
        share = number(graph, "scale")
    return Ours(case.inputs["Q"], case.inputs["K"], case.inputs["V"], options, share)


def test_the_package_brings_its_11_cases_of_which_five_have_a_graph() -> None:
    assert (len(CASES), len(MODIFIED)) == (11, 5)
    graphs = {
        case.attributes["score_mod"].name for case in MODIFIED if "score_mod" in case.attributes
    }
    assert graphs == SCORE_MODS.keys()


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_output_is_that_of_onnx(case: Case, backend: str) -> None:
    ours = as_ours(case)
    if backend == "fused" and "softcap" in ours.options:
        with pytest.raises(BackendError, match="softcap"):
            mh.attention(ours.q, ours.k, ours.v, **ours.options, backend=backend)
        return
    output = mh.attention(ours.q, ours.k, ours.v, **ours.options, backend=backend)
    case.check("Y", output * ours.share)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_output_beside_the_weights_is_that_of_onnx(case: Case) -> None:
    ours = as_ours(case)
    output, weights = mh.attention_with_weights(ours.q, ours.k, ours.v, **ours.options)
    case.check("Y", output * ours.share)
    v = ours.v.repeat_interleave(ours.q.shape[1] // ours.v.shape[1], dim=1)
    if weights.element_size() > 2:
        case.check("Y", weights * ours.share @ v)
