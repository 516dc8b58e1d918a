"""What a cache went through: drawn appends, rollbacks and reorders, beside what it should hold."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from manyheads.cache import Cache
from manyheads.functional import attention
from manyheads.laws.law import require, require_close
from manyheads.laws.text import HEAD_DIM, MASKS, WIDE, Text
from manyheads.masks import Mask, Tokens, settle
from manyheads.positions import Rotary

STEPS = 8


class History:
    """A cache and, beside it, the text that it should hold, whatever is done to both.

    Args:
        factory: Makes an empty cache.
        mask: Which of the masks.
        tolerance: How far outputs may be off, as a share of the largest.
        seed: Seeds all that is drawn.
        masks: Masks by name, made of all tokens so far and of the new ones.
    """

    def __init__(
        self,
        factory: Callable[[], Cache],
        mask: str,
        *,
        tolerance: float,
        seed: int,
        masks: Mapping[str, Callable[[Text, Text], Mask]] = MappingProxyType({**MASKS, **WIDE}),
    ) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.cache, self.mask, self.tolerance, self.seed = factory(), mask, tolerance, seed
        self.rule = masks[mask]
        self.done: list[str] = []
        self.whole: Text = self._empty()

    def __str__(self) -> str:
        name, steps = type(self.cache).__name__, "; ".join(self.done)
        return f"cache={name}, mask={self.mask}, seed={self.seed}, after: {steps}"

    def live(self) -> None:
        """Do some drawn steps, and hold the cache to its word after each."""
        self.append(self._number(1, 4))
        for _ in range(STEPS):
            step = self._number(0, 3)
            if step == 2:
                self.rollback(self._number(0, self.whole.length))
            elif step == 3 and self.whole.length:
                rows = torch.randint(
                    0, self.whole.batch, (self._number(1, 3),), generator=self.draw
                )
                self.reorder(rows)
            else:
                self.append(self._number(0, 3))

    def append(self, length: int) -> None:
        """Let new tokens attend to all that are held and to themselves."""
        new = Text.drawn(self.draw, self.whole.batch, length)
        positions, given = self._places(length)
        new = replace(new, positions=positions).void(positions < 0)
        self.done.append(f"append {length}{' at ' + str(positions.tolist()) if given else ''}")
        self.whole = self.whole.then(new)
        told = new if given else replace(new, positions=None)
        found = attend(self.cache, told, self.rule(self.whole, new))
        right = one_pass(self.whole, self.rule(self.whole, self.whole))
        right = right[:, :, right.shape[2] - length :]
        require_close("the output", found, right, self, tolerance=self.tolerance)
        self._check()

    def rollback(self, count: int) -> None:
        """Forget the last tokens."""
        self.done.append(f"rollback {count}")
        self.cache.rollback(count)
        self.whole = self.whole.slice(0, self.whole.length - count)
        if not self.whole.length:
            self.whole = self._empty()
        self._check()

    def reorder(self, rows: Tensor) -> None:
        """Continue other rows, perhaps more or fewer."""
        self.done.append(f"reorder {rows.tolist()}")
        self.cache.reorder(rows)
        self.whole = self.whole.rows(rows)
        self._check()

    def _empty(self) -> Text:
        # A cache that forgot all takes any batch.
        text = Text.drawn(self.draw, self._number(1, 3), 0)
        return replace(text, positions=torch.zeros(text.batch, 0, dtype=torch.long))

    def _number(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=self.draw))

    def _places(self, length: int) -> tuple[Tensor, bool]:
        """Positions after the last token of each row; or, given, later ones with gaps between."""
        assert self.whole.positions is not None
        batch, given = self.whole.batch, self._number(0, 1) == 1
        last = torch.cat((torch.full((batch, 1), -1), self.whole.positions), dim=1).amax(1)
        if not given:
            return last[:, None] + 1 + torch.arange(length), False
        there = torch.rand(batch, length, generator=self.draw) < 0.7
        places = last[:, None] + self._number(0, 2) + there.cumsum(dim=1)
        return places.masked_fill(~there, -3), True

    def _check(self) -> None:
        cache, text = self.cache, self.whole
        require(cache.length == text.length, self, f"length is {cache.length}, not {text.length}")
        if text.length:
            assert text.positions is not None
            right = text.positions.clamp(min=-1)
            held = cache.positions.clamp(min=-1).expand(right.shape)
            require(torch.equal(held, right), self, f"positions are {held.tolist()}")


def attend(cache: Cache, new: Text, mask: Mask) -> Tensor:
    """The outputs of new tokens, by what a layer does with a cache."""
    if new.positions is None:
        tokens = cache.follow(new.length, new.q.device)
    else:
        tokens = Tokens.given("positions", new.positions, new.batch, new.length, new.q.device)
    total = cache.total(new.length)
    bound = settle(mask, new.batch, tokens, tokens, related=True, kv_total=total)
    turn = Rotary(HEAD_DIM).at(bound.q.position, like=new.q)
    held = cache.append(turn(new.k), new.v, bound.kv)
    return attention(turn(new.q), held.k, held.v, bound.with_keys(held.tokens))


def one_pass(whole: Text, mask: Mask) -> Tensor:
    """The outputs of all tokens, by the reference and without a cache."""
    places = whole.positions
    turn = Rotary(HEAD_DIM).at(places, like=whole.q)
    q, k = turn(whole.q), turn(whole.k)
    return attention(q, k, whole.v, mask, q_pos=places, kv_pos=places, backend="reference")
