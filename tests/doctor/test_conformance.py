"""The laws tell of anyone's attention function which it keeps, and how it could declare itself."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads as mh
from manyheads.doctor import conformance
from manyheads.errors import DTypeError
from manyheads.laws import Convention

ALONE = Convention(grouped="no")


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


def test_ours_keeps_every_law() -> None:
    def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return mh.attention(q, k, v)
        return mh.attention(q, k, v, mh.Dense(mask) & mh.Padding(mask.any(dim=(1, 2))))

    found = conformance(ours)
    assert found.conforms
    assert len(found.verdicts) == 11
    assert str(found).startswith("ours: keeps 11 of 11 laws")


def test_torch_lets_nan_in_hidden_values_through_and_says_so_if_declared() -> None:
    found = conformance(fused, ALONE)
    assert found.broken == ("hidden_keys_may_hold_anything",)
    assert "kept if declared with hidden='finite'" in str(found)
    assert conformance(fused, Convention(grouped="no", hidden="finite")).conforms


def test_the_textbook_formula_gives_nan_in_empty_rows() -> None:
    found = conformance(written_out, ALONE)
    assert found.broken == ("empty_rows_are_what_was_declared", "hidden_keys_may_hold_anything")


def test_a_mask_of_the_other_polarity_is_named() -> None:
    def hides(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return fused(q, k, v, None if mask is None else ~mask)

    found = conformance(hides, ALONE)
    verdicts = {each.law: each for each in found.verdicts}
    assert verdicts["mask_means_what_was_declared"].instead == "mask='hidden'"
    assert "is_attention" not in found.broken


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"must be a function of \(q, k, v, mask\); got"):
        conformance(torch.ones(2))  # type: ignore[arg-type]
