"""A mask says who may see whom in one way, whatever the dtype in which it came."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near
from torch import Tensor

import manyheads as mh
from manyheads.errors import DTypeError, MaskError

KEEP = torch.tensor([[True, True, True, False]])
ADDED = torch.zeros(1, 4).masked_fill(~KEEP, -torch.inf)

SAME_INTENT = {
    "bool keep": lambda: mh.Padding(KEEP),
    "lengths": lambda: mh.Padding(lengths=torch.tensor([3])),
    "bool of two dimensions": lambda: KEEP.expand(2, 4),
    "bool of four dimensions": lambda: KEEP.expand(1, 1, 2, 4),
    "int8, 1 = real": lambda: mh.from_attention_mask(KEEP.to(torch.int8)),
    "int64, 1 = real": lambda: mh.from_attention_mask(KEEP.long()),
    "bool, True = padding": lambda: mh.from_key_padding_mask(~KEEP),
    "int64, 1 = padding": lambda: mh.from_key_padding_mask((~KEEP).long()),
    "float, -inf = padding": lambda: mh.from_key_padding_mask(ADDED),
    "bool, True = hidden": lambda: mh.from_attn_mask(~KEEP.expand(2, 4)),
    "float, -inf = hidden": lambda: mh.from_attn_mask(ADDED.expand(2, 4)),
    "float, finfo.min = hidden": lambda: mh.from_attention_mask(
        torch.zeros(1, 1, 2, 4).masked_fill(~KEEP, torch.finfo(torch.float32).min)
    ),
    "sdpa's bool": lambda: mh.from_sdpa_mask(KEEP.expand(2, 4)),
}


def one_head(q_len: int, kv_len: int, **options: Any) -> Exact:
    """MASK-01: two queries and four keys of width 4, of which the last key is hidden."""
    q, k, v = det((1, 1, q_len, 4), 1), det((1, 1, kv_len, 4), 2), det((1, 1, kv_len, 4), 3)
    return Exact(q, k, v, det((1, 1, q_len, 4), 97), **options)


@every_backend
@every_dtype
@pytest.mark.parametrize("mask", SAME_INTENT.values(), ids=SAME_INTENT)
def test_one_intent_gives_one_output_whatever_dtype_it_came_in(
    mask: Callable[[], Any], dtype: torch.dtype, backend: str
) -> None:
    one_head(2, 4, allow=KEEP.numpy()).agrees(dtype, backend, mask())


@every_backend
@every_dtype
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(dtype: torch.dtype, backend: str) -> None:
    bias = ADDED.to(dtype).expand(2, 4)
    one_head(2, 4, allow=KEEP.numpy()).agrees(dtype, backend, bias=bias)


def attend(**options: Any) -> Tensor:
    q, k, v = (torch.from_numpy(x) for x in (det((1, 1, 2, 4), 1), *keys_and_values()))
    return mh.attention(q, k, v, **options)[0, 0]


def keys_and_values() -> tuple[np.ndarray, np.ndarray]:
    return det((1, 1, 4, 4), 2), det((1, 1, 4, 4), 3)


def test_the_numbers_are_those_worked_out_elsewhere() -> None:
    near(
        attend(mask=mh.Padding(KEEP)),
        [
            [1.3860420277344, 1.171212002014, -0.63550673052617, -1.4510702805492],
            [-0.019076379807171, 0.079586899057761, -0.24823472249694, -1.6298162984896],
        ],
    )


def test_a_bias_of_zeros_and_ones_is_added_and_never_judged() -> None:
    """The signature to look for where somebody added a 0/1 mask."""
    near(
        attend(bias=KEEP.double().expand(2, 4)),
        [
            [1.241308242594, 1.0970391343335, -0.66277958873463, -1.3977635624986],
            [-0.17863177136782, 0.029759301835318, -0.33435736750497, -1.5111922735611],
        ],
    )


def test_the_other_polarity_leaves_the_padding_alone() -> None:
    """The signature to look for where True was read as blocked."""
    near(attend(mask=~mh.Padding(KEEP)), [[-1.875, -0.5, -1.25, -0.25]] * 2)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float32, torch.half])
@pytest.mark.parametrize(
    "entry", [mh.attention, mh.attention_with_weights, mh.attention_with_lse, mh.explain]
)
def test_numbers_given_as_a_mask_are_refused_with_the_cure(
    entry: Callable, dtype: torch.dtype
) -> None:
    q = torch.zeros(1, 1, 2, 4)
    k = torch.zeros(1, 1, 4, 4)
    with pytest.raises(DTypeError, match=r"must be bool.*from_attention_mask.*bias=") as refusal:
        entry(q, k, k, KEEP.expand(2, 4).to(dtype))
    assert str(dtype) in str(refusal.value)


@pytest.mark.parametrize(
    "read",
    [mh.from_attention_mask, mh.from_key_padding_mask, lambda mask: mh.from_attn_mask(mask[:, :2])],
)
def test_floats_of_zero_and_one_have_no_one_meaning(read: Callable) -> None:
    with pytest.raises(DTypeError, match=r"0/1|\.bool"):
        read(KEEP.float())


@pytest.mark.parametrize("read", [mh.from_attention_mask, mh.from_key_padding_mask])
def test_integers_that_count_are_no_mask(read: Callable) -> None:
    with pytest.raises(MaskError, match="only 0 and 1; got values from 0 to 2"):
        read(torch.tensor([[0, 1, 2]]))


# MASK-02: causality and padding together, each in any dtype. Neither may disappear.

PAD = torch.tensor([[False, False, False], [False, False, True]])
FUTURE = torch.ones(3, 3, dtype=torch.bool).triu(1)


def added(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)


CAUSAL = {
    "rule": lambda: {"mask": mh.Causal()},
    "bool": lambda: {"mask": mh.from_attn_mask(FUTURE)},
    "float": lambda: {"mask": mh.from_attn_mask(added(FUTURE))},
    "bias": lambda: {"bias": added(FUTURE)[None, None]},
}
PADDING = {
    "bool": lambda: {"mask": mh.from_key_padding_mask(PAD)},
    "float": lambda: {"mask": mh.from_key_padding_mask(added(PAD))},
    "int": lambda: {"mask": mh.from_key_padding_mask(PAD.int())},
    "bias": lambda: {"bias": added(PAD)[:, None, None]},
    "lengths": lambda: {"mask": mh.Padding(lengths=torch.tensor([3, 2]))},
}


def joined(causal: dict, padding: dict) -> dict:
    if "mask" in causal and "mask" in padding:
        return {"mask": causal["mask"] & padding["mask"]}
    if "bias" in causal and "bias" in padding:
        return {"bias": causal["bias"] + padding["bias"]}
    return causal | padding


def two_sequences() -> Exact:
    q, k, v = (det((2, 1, 3, 4), number) for number in (4, 5, 6))
    allow = ~FUTURE & ~PAD[:, None, None]
    return Exact(q, k, v, det((2, 1, 3, 4), 97), allow=allow.numpy())


@every_backend
@every_dtype
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("padding", PADDING)
def test_neither_of_two_masks_disappears(
    causal: str, padding: str, dtype: torch.dtype, backend: str
) -> None:
    options = joined(CAUSAL[causal](), PADDING[padding]())
    if "bias" in options:
        options["bias"] = options["bias"].to(dtype)
    two_sequences().agrees(dtype, backend, **options)


def test_the_second_sequence_has_the_numbers_worked_out_elsewhere() -> None:
    exact = two_sequences()
    q, k, v = (torch.from_numpy(x) for x in (exact.q, exact.k, exact.v))
    output, weights = mh.attention_with_weights(
        q, k, v, mh.Causal() & mh.from_key_padding_mask(PAD)
    )
    near(
        output[1, 0],
        [
            [1.375, -0.125, 0.125, -1.75],
            [0.84726488083319, -0.14529750458334, -0.017082532083372, -1.3846449174999],
            [-0.60595352834113, -0.20119052032081, -0.40833364224569, -0.37857063422537],
        ],
    )
    near(
        weights[1, 0],
        [[1, 0, 0], [0.83761996333329, 0.16238003666671, 0], [0.3904758374335, 0.6095241625665, 0]],
    )
