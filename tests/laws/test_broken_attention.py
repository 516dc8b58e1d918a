"""Each law of attention is broken by a function that many have written."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.laws import SUITES, Convention, LawBroken, check_attention
from manyheads.laws.attention import Stranger, large_scores_stay_finite
from manyheads.laws.law import hold

Function = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Right but for what it does to rows that see nobody: it gives them the mean."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1) @ v


USUAL = Convention(empty="mean", grouped="no", hidden="finite")


def test_a_plain_attention_keeps_the_laws_under_its_own_convention() -> None:
    check_attention(plain, USUAL, thorough=True)


def test_other_conventions_are_declared_and_kept() -> None:
    def other(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        times = q.shape[2] // k.shape[2]
        q, k, v = (
            x.transpose(1, 2) for x in (q, k.repeat(1, 1, times, 1), v.repeat(1, 1, times, 1))
        )
        return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0).transpose(1, 2)

    check_attention(
        other,
        Convention(
            layout="length first", mask="added", grouped="strided", scale=1.0, hidden="finite"
        ),
    )


def takes_the_mask_for_its_opposite(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return plain(q, k, v, None if mask is None else ~mask)


def scales_by_the_width(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return plain(q / q.shape[-1] ** 0.5, k, v, mask)


def is_causal_from_the_upper_left(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)


def hides_nan_from_the_eye(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1).nan_to_num() @ v


def softmaxes_over_the_batch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return plain(q, k, v, None if mask is None else mask.any(dim=0, keepdim=True))


def adds_positions_to_keys(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return plain(q, k + torch.linspace(0, 1, k.shape[2], dtype=k.dtype)[:, None], v, mask)


def does_not_subtract_the_peak(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    exponentials = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    if mask is not None:
        exponentials = exponentials * mask
    return exponentials / exponentials.sum(dim=-1, keepdim=True) @ v


def groups_in_turn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return plain(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), mask)


def scales_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return plain(q.div_(2), k, v, mask)


@pytest.mark.parametrize(
    ("function", "law", "changes"),
    [
        (scales_by_the_width, "is_attention", {}),
        (takes_the_mask_for_its_opposite, "mask_means_what_was_declared", {}),
        (is_causal_from_the_upper_left, "later_keys_do_not_matter", {}),
        (plain, "empty_rows_are_what_was_declared", {"empty": "zero"}),
        (hides_nan_from_the_eye, "empty_rows_are_what_was_declared", {"empty": "zero"}),
        (hides_nan_from_the_eye, "empty_rows_are_what_was_declared", {}),
        (plain, "hidden_keys_may_hold_anything", {"hidden": "anything"}),
        (softmaxes_over_the_batch, "batch_neighbours_do_not_matter", {}),
        (adds_positions_to_keys, "order_of_keys_does_not_matter", {}),
        (groups_in_turn, "heads_group_as_declared", {"grouped": "neighbours"}),
        (plain, "heads_group_as_declared", {"grouped": "neighbours"}),
        (scales_in_place, "arguments_are_left_alone", {}),
    ],
)
def test_a_function_that_is_wrong_is_found_out(
    function: Function, law: str, changes: dict[str, str]
) -> None:
    convention = Convention(**{"empty": "mean", "grouped": "no", "hidden": "finite", **changes})
    chosen = next(one for one in SUITES["attention"] if one.__name__ == law)
    with pytest.raises(LawBroken) as found:
        hold((chosen,), Stranger(function, convention, seed=0))
    assert found.value.law.startswith(law + ":")


def test_a_softmax_that_overflows_is_found_out() -> None:
    with pytest.raises(LawBroken, match="large_scores_stay_finite"):
        hold((large_scores_stay_finite,), Stranger(does_not_subtract_the_peak, USUAL, seed=0))


def test_an_output_of_another_dtype_is_found_out() -> None:
    with pytest.raises(LawBroken, match="output_has_the_dtype_of_q"):
        check_attention(
            lambda q, k, v, mask: plain(q.float(), k.float(), v.float(), mask),
            Convention(empty="mean", grouped="no", hidden="finite", dtype=torch.bfloat16),
        )


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(OptionError) as refused:
        Convention(mask="keep")  # type: ignore[arg-type]
    assert str(refused.value) == (
        "mask must be one of may see, hidden, added; got mask='keep'. Declare what the function "
        "does."
    )
