"""A mask settled for the tokens of one call."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.algebra import And, Everyone, both
from manyheads.masks.base import Mask, four_dims
from manyheads.masks.causal import Causal
from manyheads.masks.dense import as_mask
from manyheads.masks.facts import Facts, Tokens
from manyheads.masks.rule import Rule
from manyheads.shapes import Positions


@dataclass(frozen=True, eq=False)
class Bound:
    """A rule without tensors, and what is known of the tokens that it is asked about.

    Whoever makes several calls on the same tokens (a stack of layers, say) settles a mask once and
    hands the result over as ``mask``: what is worked out for the first call serves the others.

    Args:
        rule: The mask without its tensors, and without the parts that surely hide nothing here.
        q: What is known of the queries.
        kv: What is known of the keys.
        pairs: Facts of whole pairs, (batch or 1, heads or 1, q_len, kv_len), by name.
        clean: Whether absent tokens are known to hold nothing foreign, so that nobody zeroes them.
        keeps_below: What was written is kept if it has at most so many elements.
        plans: Block plans made of this mask.
    """

    rule: Mask
    q: Tokens
    kv: Tokens
    pairs: Mapping[str, Tensor] = field(default_factory=dict)
    clean: bool = False
    keeps_below: int = sys.maxsize
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)
    _written: dict[object, Tensor] = field(default_factory=dict, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether every query sees every key, as far as can be said without looking at values."""
        return type(self.rule) is Everyone and self.q.absent is None and self.kv.absent is None

    @property
    def is_causal(self) -> bool:
        """Whether the i-th query sees just the first i keys, which is torch's ``is_causal``."""
        present = self.q.absent is None and self.kv.absent is None
        return type(self.rule) is Causal and present and self.is_below_diagonal

    @property
    def is_below_diagonal(self) -> bool:
        """Whether the i-th query surely sees none but the first i keys, and of them perhaps all."""
        q, kv = self.q, self.kv
        # A compiler's symbols become answers where code branches on them: lengths come last.
        if not (self.rule.hides_future() and q.is_run and kv.is_run):
            return False
        return True if q.length == kv.length and q.position == kv.position else False  # noqa: SIM210

    def has_no_pairs(self, *, past_only: bool = False) -> bool:
        """Whether `dense` surely has no axis for both queries and keys."""
        rule = _without_causal(self.rule) if past_only else self.rule
        return type(rule) is Everyone and (self.q.absent is None or self.kv.absent is None)

    def dense(self, num_heads: int = 1, *, past_only: bool = False) -> Tensor:
        """The pairs that may see each other: bool, broadcastable to (batch, heads, q_len, kv_len).

        An axis along which nothing changes keeps length 1.

        Args:
            num_heads: How many query heads there are.
            past_only: Whether pairs above the diagonal are hidden by the kernel, so that nothing
                needs to be said of them.
        """
        key = (num_heads, past_only)
        return self._kept(key, lambda: self._write(num_heads, past_only=past_only))

    def additive(self, num_heads: int, dtype: torch.dtype, *, past_only: bool = False) -> Tensor:
        """`dense` as a kernel adds it to its scores: 0 for pairs that may see each other, or -inf.

        torch makes this of a bool mask at each call; here it is made once for a stack of layers.
        """

        def write() -> Tensor:
            seen = self._write(num_heads, past_only=past_only)
            return torch.where(seen, seen.new_zeros((), dtype=dtype), -torch.inf)

        return self._kept((num_heads, past_only, dtype), write)

    def _kept(self, key: tuple[object, ...], write: Callable[[], Tensor]) -> Tensor:
        if torch.compiler.is_compiling():
            return write()
        # A tensor made under inference_mode cannot be saved for a gradient later.
        key = (*key, torch.is_inference_mode_enabled())
        if key not in self._written:
            written = write()
            # A fake tensor, made to learn shapes, means nothing after its call.
            if type(written) is not Tensor or written.numel() > self.keeps_below:
                return written
            self._written[key] = written
        return self._written[key]

    def _write(self, num_heads: int, *, past_only: bool) -> Tensor:
        rule, seen = _without_causal(self.rule) if past_only else self.rule, None
        if self.kv.absent is not None:
            seen = ~self.kv.absent[:, None, None, :]
        if self.q.absent is not None:
            there = ~self.q.absent[:, None, :, None]
            seen = there if seen is None else seen & there
        if type(rule) is Everyone and seen is not None:
            return seen
        head = torch.arange(num_heads, device=self.kv.device).view(-1, 1, 1)
        allowed = four_dims(rule.allows(head, self.q.side(-2), self.kv.side(-1, self.pairs)))
        return allowed if seen is None else allowed & seen

    def check_fits(self, batch: int, q_len: int, kv_len: int, *positions: Positions) -> None:
        """Refuse a call that this mask was not settled for."""
        if any(given is not None for given in positions):
            raise MaskError(
                "a settled mask must come alone; got positions beside it. It holds the positions "
                "that it was settled with."
            )
        if (self.q.length, self.kv.length) != (q_len, kv_len):
            raise MaskError(
                f"a settled mask must fit its call; got one for {self.q.length} queries and "
                f"{self.kv.length} keys, and q_len={q_len}, kv_len={kv_len}. Settle it anew; with "
                f"a cache it speaks of the new tokens alone."
            )
        for fact in (*self.q.facts(), *self.kv.facts(), *self.pairs.values()):
            if fact.shape[0] not in (1, batch):
                raise MaskError(
                    f"a settled mask must fit its call; got one for a batch of {fact.shape[0]}, "
                    f"and batch={batch}. Settle it anew."
                )

    def on_cpu(self) -> "Bound":
        """This mask with its facts of tokens where values can be read; waits once for a device."""
        if (self.kv.device or torch.device("cpu")).type == "cpu":
            return self
        if "cpu" not in self.plans:
            q, kv = self.q.to("cpu"), self.kv.to("cpu")
            self.plans["cpu"] = Bound(self.rule, q, kv, self.pairs, self.clean)
        return self.plans["cpu"]

    def with_keys(self, kv: Tokens) -> "Bound":
        """This mask over the keys of a cache, of which it described the newest."""
        return Bound(simplify(self.rule, self.q, kv), self.q, kv, self.pairs, self.clean)

    def cleaned(self) -> "Bound":
        """This mask for tensors whose absent tokens hold nothing foreign."""
        return Bound(self.rule, self.q, self.kv, self.pairs, clean=True)


_RULES: dict[tuple[object, ...], Bound] = {}
_RULES_KEPT, _DENSE_KEPT = 64, 2**20


def bind(
    mask: "Mask | Tensor | None",
    batch: int,
    q_len: int,
    kv_len: int,
    *,
    q_pos: Positions = None,
    kv_pos: Positions = None,
    device: torch.device | None = None,
) -> Bound:
    """Settle a mask for one call of attention without a cache.

    Args:
        mask: Who may see whom; None lets everyone see everyone who is there.
        batch: How many sequences.
        q_len: How many queries.
        kv_len: How many keys.
        q_pos: Positions of the queries; None makes them the last ``q_len`` of the keys.
        kv_pos: Positions of the keys; None means 0, 1, 2, ...
        device: Where the call's tensors are.
    """
    if (q_pos is None) != (kv_pos is None):
        given, missing = ("q_pos", "kv_pos") if kv_pos is None else ("kv_pos", "q_pos")
        raise MaskError(
            f"positions must be given for both sides or for neither; got {given} without "
            f"{missing}. Add {missing}=."
        )
    rule = Everyone() if mask is None else as_mask(mask)
    if q_pos is not None:
        kv = Tokens.given("kv_pos", kv_pos, batch, kv_len, device)
        q = Tokens.given("q_pos", q_pos, batch, q_len, device)
        return settle(rule, batch, q, kv, related=q_len == kv_len)
    key = (rule, q_len, kv_len, device)
    keeps = not torch.compiler.is_compiling()
    if keeps and (known := _RULES.get(key)) is not None:
        return known  # asked for once, since another thread may clear them in between
    kv = Tokens(kv_len, 0, device=device)
    bound = settle(rule, batch, last_of(kv, rule, batch, q_len), kv, related=True)
    if keeps and bound.q.is_run and not rule.tensors() and not _asks_others(rule):
        # Only rules are keys: a mask with tensors equals itself alone, and is never met again. And
        # no tensor is kept: made as a fake or under inference_mode, it would not outlive its call.
        if len(_RULES) >= _RULES_KEPT:
            _RULES.clear()
        _RULES[key] = bound = Bound(bound.rule, bound.q, bound.kv, keeps_below=_DENSE_KEPT)
    return bound


def _asks_others(rule: Mask) -> bool:
    # A user's function may read what changes from call to call.
    return any(isinstance(part, Rule) for part in rule.parts())


def last_of(kv: Tokens, rule: Mask, batch: int, q_len: int) -> Tokens:
    """The queries where nobody placed them: the last ``q_len`` of a run of keys."""
    assert not isinstance(kv.position, Tensor)
    first = kv.position + kv.length - q_len
    if first < 0 and rule.reads_positions:
        # Queries that stand before every key are nowhere; a rule without positions does not mind.
        return Tokens.given("q_pos", first, batch, q_len, kv.device)
    return Tokens(q_len, first, device=kv.device)


def settle(
    mask: Mask, batch: int, q: Tokens, kv: Tokens, *, related: bool, kv_total: int | None = None
) -> Bound:
    """Split a mask into a rule without tensors and the facts that it reads.

    Args:
        mask: The mask.
        batch: How many sequences.
        q: The queries.
        kv: The keys that the mask speaks of; with a cache, the new ones.
        related: Whether the queries are the last of those keys, as in self-attention.
        kv_total: How many keys the call has, those of a cache included; None means no cache.
    """
    total = kv.length if kv_total is None else kv_total
    facts = Facts(batch, q, kv, kv_total=total, related=related)
    rule = mask.settle(facts)
    hidden = rule.absent()
    if hidden:
        rule = rule.among(hidden)
        for name in sorted(hidden):
            kv = kv.with_absent(facts.kv_marks[name])
    if facts.q_marks or facts.kv_marks:
        read = {getattr(part, "fact", None) for part in rule.parts()}
        kv_marks = {name: mark for name, mark in facts.kv_marks.items() if name in read}
        q, kv = q.with_marks(facts.q_marks), kv.with_marks(kv_marks)
    if kv_total is None:  # otherwise the old keys are yet to come
        rule = simplify(rule, q, kv)
    return Bound(rule, q, kv, facts.pairs)


def simplify(rule: Mask, q: Tokens, kv: Tokens) -> Mask:
    """Leave out the parts of a rule that, on these runs of positions, surely hide nothing."""
    if isinstance(q.position, Tensor) or isinstance(kv.position, Tensor):
        return rule
    if torch.compiler.is_exporting():
        return rule  # the program will serve every length, so nothing in it may hang on this one
    if not (q.length and kv.length):
        return rule
    return _simplify(
        rule, q.position, q.position + q.length - 1, kv.position, kv.position + kv.length - 1
    )


def _simplify(rule: Mask, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Mask:
    if rule.bounds(None, q_lo, q_hi, kv_lo, kv_hi)[1]:
        return Everyone()
    if isinstance(rule, And):
        left = _simplify(rule.left, q_lo, q_hi, kv_lo, kv_hi)
        return both(left, _simplify(rule.right, q_lo, q_hi, kv_lo, kv_hi))
    return rule


def _without_causal(rule: Mask) -> Mask:
    if type(rule) is Causal:
        return Everyone()
    if isinstance(rule, And):
        return both(_without_causal(rule.left), _without_causal(rule.right))
    return rule
