"""The laws of masks: what `check_mask` holds any `Mask` to."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyheads.errors import MaskWarning
from manyheads.laws.law import LawBroken, Suite, hold, require, require_same
from manyheads.masks import Bound, Causal, Global, Mask, Prefix, Rule, Tokens, Window, bind
from manyheads.shapes import Positions


@dataclass(frozen=True)
class MaskCase:
    """What a mask is tried with: the call that it is made for, and where its tokens stand."""

    mask: Mask
    q_len: int
    kv_len: int
    batch: int
    num_heads: int
    seed: int
    rounds: int

    def __str__(self) -> str:
        return (
            f"mask={self.mask!r}, q_len={self.q_len}, kv_len={self.kv_len}, batch={self.batch}, "
            f"num_heads={self.num_heads}, seed={self.seed}"
        )

    def bound(self, mask: Mask, q_pos: Positions = None, kv_pos: Positions = None) -> Bound:
        """A mask, settled for this call."""
        return bind(mask, self.batch, self.q_len, self.kv_len, q_pos=q_pos, kv_pos=kv_pos)

    def dense(self, mask: Mask, q_pos: Positions = None, kv_pos: Positions = None) -> Tensor:
        """A mask, written out for this call."""
        return self.whole(self.bound(mask, q_pos, kv_pos))

    def whole(self, bound: Bound) -> Tensor:
        """A settled mask, written out for this call's batch and heads."""
        seen = bound.dense(self.num_heads)
        return seen.expand(self.batch, self.num_heads, bound.q.length, bound.kv.length)

    def positions(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Random positions of queries and keys, (batch, length), in no order; none below 0."""
        draw = torch.Generator().manual_seed(self.seed)
        for _ in range(self.rounds):
            sides = []
            for length in (self.q_len, self.kv_len):
                first, span = torch.randint(0, 2 * length + 4, (2,), generator=draw).tolist()
                shape = (self.batch, length)
                sides.append(torch.randint(first, first + span // 2 + 1, shape, generator=draw))
            yield sides[0], sides[1]


COMPANIONS = (Causal(), Window(3), Window(before=1, after=4), Prefix(2), Global((0, 5)))
"""Masks of numbers alone, with which a mask is joined."""


def allows_a_broadcastable_bool(case: MaskCase) -> None:
    """`allows` returns bool that broadcasts to (batch, heads, q_len, kv_len)."""
    whole = (case.batch, case.num_heads, case.q_len, case.kv_len)
    for q_pos, kv_pos in case.positions():
        seen = _allows(case.bound(case.mask, q_pos, kv_pos), case.num_heads)
        require(seen.dtype == torch.bool, case, f"allows returned {seen.dtype}")
        fits = seen.ndim == 4 and all(
            size in (1, full) for size, full in zip(seen.shape, whole, strict=True)
        )
        require(fits, case, f"allows returned shape {tuple(seen.shape)}, which is not of {whole}")


def settles_into_a_rule_without_tensors(case: MaskCase) -> None:
    """What is left of a mask when its facts are taken out holds no tensor."""
    rule = case.bound(case.mask).rule
    require(not rule.tensors(), case, f"the settled rule {rule!r} holds tensors")
    hash(rule)


def bounds_are_sound(case: MaskCase) -> None:
    """Where `bounds` says "surely none" or "surely all" of a block, `allows` says so too."""
    for mask in (case.mask, *_joined(case.mask)):
        for q_pos, kv_pos in case.positions():
            bound = case.bound(mask, q_pos, kv_pos)
            seen = case.whole(
                Bound(bound.rule, _all_there(bound.q), _all_there(bound.kv), bound.pairs)
            )
            span = (int(x) for side in (q_pos, kv_pos) for x in (side.min(), side.max()))
            _require_sound(case, bound.rule, seen, *span)


def joins_as_logic_does(case: MaskCase) -> None:
    """Written out, ``a & b``, ``a | b`` and ``~a`` are the and, or and not of a and b."""
    for q_pos, kv_pos in case.positions():
        own = case.dense(case.mask, q_pos, kv_pos)
        require_same("~mask", case.dense(~case.mask, q_pos, kv_pos), ~own, case)
        require_same("~~mask", case.dense(~~case.mask, q_pos, kv_pos), own, case)
        for other in COMPANIONS:
            theirs = case.dense(other, q_pos, kv_pos)
            both, either = case.mask & other, case.mask | other
            require_same(f"{both!r}", case.dense(both, q_pos, kv_pos), own & theirs, case)
            require_same(f"{either!r}", case.dense(either, q_pos, kv_pos), own | theirs, case)
            neither = ~case.mask & ~other
            require_same(f"{neither!r}", case.dense(neither, q_pos, kv_pos), ~(own | theirs), case)


def answers_for_each_pair_alone(case: MaskCase) -> None:
    """A slice of the tokens, written out, is the slice of what was written out."""
    for q_pos, kv_pos in case.positions():
        bound = case.bound(case.mask, q_pos, kv_pos)
        whole, middle = case.whole(bound), case.kv_len // 2
        for rows, columns in (
            (slice(case.q_len // 3, None, 2), slice(case.kv_len // 4, None, 3)),
            (slice(0, 1), slice(middle, middle + 1)),
        ):
            pairs = {name: fact[:, :, rows, columns] for name, fact in bound.pairs.items()}
            part = Bound(bound.rule, _slice(bound.q, rows), _slice(bound.kv, columns), pairs)
            require_same("the slice", case.whole(part), whole[:, :, rows, columns], case)


def absent_tokens_stay_absent(case: MaskCase) -> None:
    """A token at a position below 0 sees nobody and is seen by nobody, whatever ~ and | do."""
    for q_pos, kv_pos in case.positions():
        q_gone, kv_gone = q_pos % 3 == 1, kv_pos % 3 == 2
        q_pos, kv_pos = q_pos.masked_fill(q_gone, -1), kv_pos.masked_fill(kv_gone, -7)
        for mask in (case.mask, *_joined(case.mask)):
            seen = case.dense(mask, q_pos, kv_pos)
            met = seen & (q_gone[:, None, :, None] | kv_gone[:, None, None, :])
            require(not met.any(), case, f"{mask!r} lets {int(met.sum())} pairs meet in the void")


def positions_matter_only_where_said(case: MaskCase) -> None:
    """A mask with ``reads_positions = False`` means the same at all positions."""
    if case.mask.reads_positions:
        return
    seen = case.dense(case.mask, 0, 0)
    for q_pos, kv_pos in case.positions():
        require_same("the moved mask", case.dense(case.mask, q_pos, kv_pos), seen, case)


def future_is_hidden_where_said(case: MaskCase) -> None:
    """A mask with ``hides_future()`` lets no query see a later key."""
    if not case.mask.hides_future():
        return
    for q_pos, kv_pos in case.positions():
        later = kv_pos[:, None, None, :] > q_pos[:, None, :, None]
        met = case.dense(case.mask, q_pos, kv_pos) & later
        require(not met.any(), case, f"{int(met.sum())} queries see a later key")


def copies_mean_the_same(case: MaskCase) -> None:
    """Pickle, deepcopy, ``.to`` and a pytree's round trip leave the meaning as it was."""
    leaves, structure = pytree.tree_flatten(case.mask)
    copies = {
        "deepcopy": copy.deepcopy(case.mask),
        "to": case.mask.to("cpu"),
        "to a dtype": case.mask.to(torch.bfloat16),
        "pytree": pytree.tree_unflatten(leaves, structure),
    }
    if _can_pickle(case.mask):
        copies["pickle"] = pickle.loads(pickle.dumps(case.mask))
    require(all(isinstance(leaf, Tensor) for leaf in leaves), case, f"pytree leaves are {leaves}")
    for name, other in copies.items():
        require_same(name, case.dense(other), case.dense(case.mask), case)
    moved = case.mask.to("meta")
    require(all(t.is_meta for t in moved.tensors()), case, "to moved some tensors and left others")


def rules_compare_by_what_they_say(case: MaskCase) -> None:
    """A mask equals itself, and, if it holds no tensor, its copies; equal masks hash alike."""
    other = copy.deepcopy(case.mask)
    require(case.mask == case.mask, case, "the mask does not equal itself")
    require(case.mask != ~case.mask, case, "the mask equals its opposite")
    same = case.mask == other
    require(isinstance(same, bool), case, f"== returned {type(same).__name__}")
    if case.mask.tensors():
        require(not same, case, "a mask with tensors equals another, though tensors do not compare")
    else:
        require(same, case, "a copy of the mask does not equal it")
        require(hash(case.mask) == hash(other), case, "equal masks have unequal hashes")


def prints_itself(case: MaskCase) -> None:
    """`repr` is one short line without an address in memory."""
    text = repr(case.mask)
    short = 0 < len(text) <= 200 and "\n" not in text and " at 0x" not in text
    require(short, case, f"repr is {text!r}")


LAWS: Suite = (
    allows_a_broadcastable_bool,
    settles_into_a_rule_without_tensors,
    bounds_are_sound,
    joins_as_logic_does,
    answers_for_each_pair_alone,
    absent_tokens_stay_absent,
    positions_matter_only_where_said,
    future_is_hidden_where_said,
    copies_mean_the_same,
    rules_compare_by_what_they_say,
    prints_itself,
)


def check_mask(
    mask: Mask,
    q_len: int = 7,
    kv_len: int = 9,
    *,
    batch: int = 2,
    num_heads: int = 2,
    seed: int = 0,
    thorough: bool = False,
) -> None:
    """Hold a mask to the laws of masks.

    Args:
        mask: The mask.
        q_len: How many queries it is tried with; a mask that holds tensors decides.
        kv_len: How many keys, likewise.
        batch: How many sequences, likewise.
        num_heads: How many query heads; a mask of its own for each head decides.
        seed: Seeds the positions that are drawn.
        thorough: Draw many more.

    Raises:
        LawBroken: If the mask breaks a law; the message names the law and the case.

    Example:
        >>> import manyheads as mh
        >>> from manyheads.laws import check_mask
        >>> check_mask(mh.Causal() & mh.Window(3))
    """
    rounds = 100 if thorough else 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskWarning)  # joined masks reopen the future on purpose
        hold(LAWS, MaskCase(mask, q_len, kv_len, batch, num_heads, seed, rounds))


def _allows(bound: Bound, num_heads: int) -> Tensor:
    head = torch.arange(num_heads).view(-1, 1, 1)
    return bound.rule.allows(head, bound.q.side(-2), bound.kv.side(-1, bound.pairs))


def _joined(mask: Mask) -> Iterator[Mask]:
    yield ~mask
    yield mask | ~mask
    for other in COMPANIONS:
        yield from (mask & other, mask | other, mask & ~other)


def _all_there(tokens: Tokens) -> Tokens:
    return Tokens(tokens.length, tokens.position, None, tokens.marks, tokens.device)


def _slice(tokens: Tokens, part: slice) -> Tokens:
    positions = tokens.positions()[..., part]
    absent = None if tokens.absent is None else tokens.absent[:, part]
    marks = {name: mark[:, part] for name, mark in tokens.marks.items()}
    return Tokens(positions.shape[-1], positions, absent, marks, tokens.device)


def _require_sound(
    case: MaskCase, rule: Mask, seen: Tensor, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
) -> None:
    for head in (None, *range(case.num_heads)):
        some, every = rule.bounds(head, q_lo, q_hi, kv_lo, kv_hi)
        pairs = seen if head is None else seen[:, head]
        if (not some and pairs.any()) or (every and not pairs.all()):
            raise LawBroken(
                case,
                f"{rule!r}.bounds(head={head}, queries {q_lo} to {q_hi}, keys {kv_lo} to {kv_hi}) "
                f"is (perhaps some={some}, surely all={every}), but {int(pairs.sum())} of "
                f"{pairs.numel()} pairs are seen",
            )


def _can_pickle(mask: Mask) -> bool:
    # A mask pickles if its functions do; Python cannot pickle a lambda.
    functions = [part.function for part in mask.parts() if isinstance(part, Rule)]
    try:
        pickle.dumps(functions)
    except (pickle.PicklingError, AttributeError):
        return False
    return True
