"""Each law of masks is broken by a mask that lies about what it says."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.laws import LawBroken, check_mask
from manyheads.laws.law import hold
from manyheads.laws.mask import MaskCase, joins_as_logic_does
from manyheads.masks import Bound, Mask
from manyheads.masks.facts import Facts, Side


@dataclass(frozen=True, eq=False)
class Near(Mask):
    """A mask that keeps every law; those below break one each."""

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return (q.position - kv.position).abs() < 3


class ReturnsNumbers(Near):
    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return super().allows(head, q, kv).float()


class ReturnsTooManyColumns(Near):
    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return super().allows(head, q, kv)[..., :2]


@dataclass(frozen=True, eq=False)
class KeepsItsTensor(Near):
    reach: Tensor = field(default_factory=lambda: torch.tensor(3))


class PromisesTooMuch(Near):
    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        return True, q_lo - kv_hi < 3 and kv_lo - q_hi < 3


class PromisesNobody(Near):
    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        return q_lo == kv_lo, False


class JudgesThePeople(Near):
    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return kv.position < kv.position.amax() + 0 * q.position


class ReadsInSecret(Near):
    reads_positions = False


class ClaimsToBeCausal(Near):
    def hides_future(self) -> bool:
        return True


class NeverAlike(Near):
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class PrintsItsAddress(Near):
    def __repr__(self) -> str:
        return object.__repr__(self)


class CannotBeCopied(Near):
    def __deepcopy__(self, memo: object) -> Mask:
        return mh.Window(2)


def test_the_honest_mask_keeps_every_law() -> None:
    check_mask(Near())


@pytest.mark.parametrize(
    ("mask", "law"),
    [
        (ReturnsNumbers(), "allows_a_broadcastable_bool"),
        (ReturnsTooManyColumns(), "allows_a_broadcastable_bool"),
        (KeepsItsTensor(), "settles_into_a_rule_without_tensors"),
        (PromisesTooMuch(), "bounds_are_sound"),
        (PromisesNobody(), "bounds_are_sound"),
        (JudgesThePeople(), "answers_for_each_pair_alone"),
        (ReadsInSecret(), "positions_matter_only_where_said"),
        (ClaimsToBeCausal(), "future_is_hidden_where_said"),
        (CannotBeCopied(), "copies_mean_the_same"),
        (NeverAlike(), "rules_compare_by_what_they_say"),
        (PrintsItsAddress(), "prints_itself"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Mask) else value,
)
def test_a_mask_that_lies_is_found_out(mask: Mask, law: str) -> None:
    with pytest.raises(LawBroken) as broken:
        check_mask(mask)
    assert broken.value.law.startswith(law + ":")


def test_a_broken_algebra_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.masks.algebra.Or.allows", mh.masks.algebra.And.allows)
    with pytest.raises(LawBroken, match="joins_as_logic_does"):
        hold((joins_as_logic_does,), MaskCase(Near(), 7, 9, 2, 2, seed=0, rounds=4))


def test_absent_tokens_that_come_back_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(bound: Bound, num_heads: int, *, past_only: bool) -> Tensor:
        head = torch.arange(num_heads).view(-1, 1, 1)
        return bound.rule.allows(head, bound.q.side(-2), bound.kv.side(-1, bound.pairs))

    monkeypatch.setattr(Bound, "_write", write)
    with pytest.raises(LawBroken, match="absent_tokens_stay_absent"):
        check_mask(Near())


def test_the_message_names_law_case_and_measure() -> None:
    with pytest.raises(LawBroken) as broken:
        check_mask(ClaimsToBeCausal(), seed=3)
    message = str(broken.value)
    assert message.startswith("future_is_hidden_where_said: A mask with ``hides_future()`` lets no")
    assert "q_len=7, kv_len=9, batch=2, num_heads=2, seed=3" in message
    assert "queries see a later key" in message
    assert isinstance(broken.value, AssertionError)


def test_an_unexpected_error_names_its_law_too() -> None:
    class Raises(Near):
        def settle(self, facts: Facts) -> Mask:
            raise ZeroDivisionError

    with pytest.raises(LawBroken, match=r"allows_a_broadcastable_bool(?s:.*)ZeroDivisionError"):
        check_mask(Raises())
