"""Every case of the ONNX operator Attention, through the public functions.

`as_ours` says, convention by convention, how ONNX differs from this library.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from tests.conformance.onnx_cases import Case, cases, named, split
from torch import Tensor

import manyheads as mh
from manyheads.errors import BackendError

CASES = cases("Attention")
SCORES = [case for case in CASES if "qk_matmul_output" in case.outputs]
CACHES = [case for case in CASES if "present_key" in case.outputs]
HALVES = [case for case in CASES if case.inputs["Q"].element_size() == 2]
STAGES = {0: "raw", 1: "capped", 2: "masked", 3: "softmax"}
KNOWN = {
    *("q_num_heads", "kv_num_heads", "scale", "softcap", "is_causal", "qk_matmul_output_mode"),
    *("left_window_size", "right_window_size", "softmax_precision"),
}


@dataclass(frozen=True)
class Ours:
    """A case in our words: what `attention` takes."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]


def as_ours(case: Case) -> Ours:
    assert case.attributes.keys() <= KNOWN
    attributes, inputs = case.attributes, case.inputs

    # Three dimensions are (batch, length, heads * width), as modules take them; ours have heads.
    q, k, v = (
        split(inputs[name], attributes.get(heads))
        for name, heads in (("Q", "q_num_heads"), ("K", "kv_num_heads"), ("V", "kv_num_heads"))
    )

    # Its cache is plain tensors that the new keys and values are appended to.
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        k = torch.cat((inputs["past_key"], k), dim=2)
        v = torch.cat((inputs["past_value"], v), dim=2)
    q_len, kv_len = q.shape[2], k.shape[2]

    options: dict[str, Any] = {}
    masks: list[mh.Mask] = []
    if attributes.get("is_causal"):
        masks.append(mh.Causal())
    # A window counts neighbours without the query itself; -1 is no limit.
    before, after = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if before >= 0 or after >= 0:
        sides = {"before": before, "after": after}
        masks.append(mh.Window(**{side: n if n >= 0 else None for side, n in sides.items()}))

    # Where we take the queries for the last of the keys, ONNX counts them from the number of keys
    # that stand before them: those of its cache, none without one, and with an outside cache, of
    # which each sequence fills nonpad_kv_seqlen slots, what is left of these. The number may be
    # negative. There ONNX lets causality hide every key, and a position below 0 is no token here:
    # the output is 0 both times. Without causality or a window such a query sees every real key,
    # so positions are given only to masks that read them.
    lengths = inputs.get("nonpad_kv_seqlen")
    if masks:
        first = past if lengths is None else (lengths - q_len)[:, None]
        options["q_pos"] = first + torch.arange(q_len)
        options["kv_pos"] = torch.arange(kv_len)
    if lengths is not None:
        masks.append(mh.Padding(lengths=lengths))

    # attn_mask is ours in polarity: a bool mask is True where a key may be seen, a float mask is
    # added to the scores, which makes it a bias. It broadcasts from the right as numpy does, three
    # dimensions being (heads, q_len, kv_len), and keys beyond its end are hidden.
    attn_mask = inputs.get("attn_mask")
    if attn_mask is not None:
        hidden = False if attn_mask.dtype == torch.bool else -torch.inf
        attn_mask = F.pad(attn_mask, (0, kv_len - attn_mask.shape[-1]), value=hidden)
        attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
        if attn_mask.dtype == torch.bool:
            masks.append(mh.Dense(attn_mask.expand(-1, -1, q_len, -1)))
        else:
            options["bias"] = attn_mask
    if masks:
        options["mask"] = reduce(lambda left, right: left & right, masks)

    # softcap(scale * q.k), then bias and mask, then softmax: one order, theirs and ours. So is the
    # rule that a query which sees nobody gets 0, whether a mask or a bias of -inf hides the keys.
    for name in ("scale", "softcap"):
        if name in attributes:
            options[name] = attributes[name]

    # Our softmax is done in fp32 at least; whoever wants float64 gives float64.
    if attributes.get("softmax_precision") == onnx.TensorProto.DOUBLE:
        q, k, v = q.double(), k.double(), v.double()
    return Ours(q, k, v, options)


def merged(case: Case, output: Tensor) -> Tensor:
    output = output.to(case.inputs["Q"].dtype)
    return output.transpose(1, 2).flatten(2) if case.inputs["Q"].ndim == 3 else output


def test_onnx_has_93_cases_of_which_18_ask_for_scores() -> None:
    assert (len(CASES), len(SCORES)) == (93, 18)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_output_is_that_of_onnx(case: Case, backend: str) -> None:
    ours = as_ours(case)
    if backend == "fused" and "softcap" in ours.options:
        with pytest.raises(BackendError, match="softcap"):
            mh.attention(ours.q, ours.k, ours.v, **ours.options, backend=backend)
        return
    output = mh.attention(ours.q, ours.k, ours.v, **ours.options, backend=backend)
    case.check("Y", merged(case, output))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_output_beside_the_weights_is_that_of_onnx(case: Case) -> None:
    ours = as_ours(case)
    output, _ = mh.attention_with_weights(ours.q, ours.k, ours.v, **ours.options)
    case.check("Y", merged(case, output))


@pytest.mark.parametrize("case", SCORES, ids=named)
def test_the_scores_are_those_of_onnx_at_the_stage_it_asks_for(case: Case) -> None:
    ours = as_ours(case)
    stage = STAGES[case.attributes.get("qk_matmul_output_mode", 0)]
    scores = mh.attention_scores(ours.q, ours.k, ours.v, **ours.options, stage=stage)
    case.check("qk_matmul_output", scores.to(case.inputs["Q"].dtype))


@pytest.mark.parametrize("case", CACHES, ids=named)
def test_the_cache_is_that_of_onnx(case: Case) -> None:
    ours = as_ours(case)
    case.check("present_key", ours.k)
    case.check("present_value", ours.v)


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("case", HALVES, ids=named)
def test_half_precision_stays_within_one_unit_of_the_exact_output(case: Case, backend: str) -> None:
    ours = as_ours(case)
    exact_options = {k: v.double() if k == "bias" else v for k, v in ours.options.items()}
    exact = mh.attention(ours.q.double(), ours.k.double(), ours.v.double(), **exact_options)
    output = mh.attention(ours.q, ours.k, ours.v, **ours.options, backend=backend)
    # 1.4 units is what the generators' own numbers reach.
    rtol = torch.finfo(output.dtype).eps
    torch.testing.assert_close(output.double(), exact, rtol=rtol, atol=case.atol)
