"""The laws of caches: what `check_cache` holds any `Cache` to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from manyheads.cache import Cache, CrossCache, QuantizedCache, RingCache
from manyheads.errors import CacheError
from manyheads.laws.context import LAWS as CONTEXT_LAWS
from manyheads.laws.context import Holding
from manyheads.laws.history import History, attend, one_pass
from manyheads.laws.law import Suite, hold, require, require_close
from manyheads.laws.ring import LAWS as RING_LAWS
from manyheads.laws.ring import Rolling
from manyheads.laws.rounding import LAWS as ROUNDING_LAWS
from manyheads.laws.rounding import Rounding
from manyheads.laws.text import MASKS, WIDE, Text
from manyheads.masks import Padding, Tokens

LENGTH, BATCH = 11, 3

SPLITS = ((11,), (1,) * 11, (5, 6), (10, 1), (4, 0, 1, 6), (1, 2, 3, 5))
"""Lengths of the chunks in which eleven tokens come."""

SPLIT_MASKS = ("causal", "window", "global", "documents")
"""Masks that every split is tried with; drawn histories try them all."""


@dataclass(frozen=True)
class Reading:
    """A way to make caches, and how nearly one must give back what it was given."""

    factory: Callable[[], Cache]
    tolerance: float
    seed: int

    def __str__(self) -> str:
        return f"cache={type(self.factory()).__name__}, seed={self.seed}"

    def text(self, *, positions: Tensor | None = None, keep: Tensor | None = None) -> Text:
        """A random text of eleven tokens in three rows."""
        text = Text.drawn(torch.Generator().manual_seed(self.seed), BATCH, LENGTH)
        return replace(text, positions=positions, keep=keep)

    def whole(self, text: Text, mask: str) -> Tensor:
        """The text in one pass, without a cache."""
        rule = MASKS[mask](text, text)
        if text.keep is not None:
            rule = rule & Padding(text.keep)
        return one_pass(text, rule)

    def agree(self, name: str, text: Text, found: Tensor, mask: str, case: str) -> None:
        """Hold what was read by a cache against one pass over the same text."""
        right = self.whole(text, mask)
        case = f"{case}, mask={mask}, {self}"
        require_close(name, found, right, case, tolerance=self.tolerance)


def any_split_equals_one_pass(reading: Reading) -> None:
    """However a text is split into chunks, its outputs are those of one pass."""
    text = reading.text()
    for mask, split in product(SPLIT_MASKS, SPLITS):
        found = read(reading.factory(), text, split, mask)
        reading.agree("the output", text, found, mask, f"chunks of {split}")


def left_padding_is_no_token(reading: Reading) -> None:
    """Rows padded on the left, by positions below 0, give what they give alone; NaN stays out."""
    lengths = torch.tensor([[LENGTH], [4], [7]])
    positions = torch.arange(LENGTH) - LENGTH + lengths
    text = reading.text(positions=positions)
    text = text.void(positions < 0)
    for mask, split in product(SPLIT_MASKS, SPLITS):
        found = read(reading.factory(), text, split, mask)
        reading.agree("the output", text, found, mask, f"left padding, chunks of {split}")


def right_padding_is_no_token(reading: Reading) -> None:
    """Rows padded on the right, by positions below 0, go on where each of them ended."""
    prompt, lengths = 6, torch.tensor([[6], [1], [4]])
    place = torch.arange(LENGTH)
    positions = torch.where(place < prompt, place, place - prompt + lengths)
    positions = positions.masked_fill((place >= lengths) & (place < prompt), -1)
    text = reading.text(positions=positions)
    text = text.void(positions < 0)
    for mask, split in product(SPLIT_MASKS, SPLITS):
        found = read(reading.factory(), text, split, mask)
        reading.agree("the output", text, found, mask, f"right padding, chunks of {split}")


def ragged_rows_keep_their_own_time(reading: Reading) -> None:
    """Rows that begin at positions of their own, and skip some, give what one pass gives."""
    positions = torch.stack([torch.arange(LENGTH) * (1 + row) + 5 * row for row in range(BATCH)])
    text = reading.text(positions=positions)
    for mask, split in product(SPLIT_MASKS, SPLITS):
        found = read(reading.factory(), text, split, mask)
        reading.agree("the output", text, found, mask, f"ragged rows, chunks of {split}")


def padding_is_remembered(reading: Reading) -> None:
    """What the mask of a chunk said of its padding holds for every later query."""
    keep = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    keep[0, 2:5], keep[1, 7], keep[2, :3] = False, False, False
    text = reading.text(positions=torch.arange(LENGTH), keep=keep)
    for mask, split in product(SPLIT_MASKS, SPLITS):
        found = read(reading.factory(), text, split, mask)
        reading.agree("the output", text, found, mask, f"padding, chunks of {split}")


def rollback_forgets(reading: Reading) -> None:
    """After a rollback the cache goes on as if the tokens had never come."""
    text, cache = reading.text(), reading.factory()
    wrong = replace(text, q=text.q.flip(2), k=text.k.flip(2), v=text.v.flip(2))
    outputs = [read(cache, text.slice(0, 5), (5,), "window")]
    for count in (0, 1, 3):
        read(cache, wrong.slice(5, 5 + count), (count,), "window")
        cache.rollback(count)
        require(cache.length == 5, reading, f"length is {cache.length} after a rollback to 5")
    outputs.append(read(cache, text.slice(5, LENGTH), (2, 4), "window"))
    reading.agree("the output", text, torch.cat(outputs, dim=2), "window", "rolled back to 5")


def rows_may_be_reordered(reading: Reading) -> None:
    """After a reorder, row i goes on with the past of row ``index[i]``, for fewer rows too."""
    for index in (torch.tensor([2, 0, 0]), torch.tensor([1])):
        text, cache = reading.text(), reading.factory()
        read(cache, text.slice(0, 6), (4, 2), "documents")
        cache.reorder(index)
        text = text.rows(index)
        found = read(cache, text.slice(6, LENGTH), (1, 4), "documents")
        whole = torch.cat([reading.whole(text, "documents")[:, :, :6], found], dim=2)
        reading.agree("the output", text, whole, "documents", f"reordered by {index.tolist()}")


def a_refusal_changes_nothing(reading: Reading) -> None:
    """What does not fit is refused by CacheError, and the cache is as it was."""
    text, cache = reading.text(), reading.factory()
    first = read(cache, text.slice(0, 6), (6,), "causal")
    k, v = text.k[:, :, 6:8], text.v[:, :, 6:8]
    for name, action in {
        "keys of other heads": lambda: cache.append(k[:, :1], v[:, :1]),
        "keys of another width": lambda: cache.append(k[..., :3], v),
        "keys of another batch": lambda: cache.append(k[:1], v[:1]),
        "keys of another dtype": lambda: cache.append(k.float(), v.float()),
        "values of another dtype": lambda: cache.append(k, v.float()),
        "keys on another device": lambda: cache.append(k.to("meta"), v.to("meta")),
        "keys without their values": lambda: cache.append(k, v[:, :, :1]),
        "keys without heads": lambda: cache.append(k[:, 0], v[:, 0]),
        "facts of other tokens": lambda: cache.append(k, v, Tokens(3, 6)),
        "a rollback past the start": lambda: cache.rollback(7),
        "a row that is not there": lambda: cache.reorder(torch.tensor([0, 3, 1])),
        "a row before the first": lambda: cache.reorder(torch.tensor([-1])),
        "rows that are no integers": lambda: cache.reorder(torch.tensor([0.0])),
    }.items():
        _require_cache_error(reading, name, action)
    rest = read(cache, text.slice(6, LENGTH), (5,), "causal")
    reading.agree("the output", text, torch.cat([first, rest], dim=2), "causal", "after refusals")


def tells_what_it_holds(reading: Reading) -> None:
    """Length and positions are those of the tokens that it was given, and memory is counted."""
    positions = torch.arange(LENGTH) - torch.tensor([[0], [4], [2]])
    text, cache = reading.text(positions=positions), reading.factory()
    require(cache.length == 0, reading, f"length is {cache.length} before the first token")
    for start, stop in ((0, 3), (3, 8)):
        read(cache, text.slice(start, stop), (stop - start,), "causal")
        require(cache.length == stop, reading, f"length is {cache.length} after {stop} tokens")
        held = cache.positions.clamp(min=-1).expand(BATCH, stop)
        right = positions[:, :stop].clamp(min=-1)
        require(torch.equal(held, right), reading, f"positions are {held.tolist()}")
    require(cache.memory_bytes() > 0, reading, "eight tokens take no memory")


def any_history_equals_one_pass(reading: Reading) -> None:
    """After any appends, rollbacks and reorders, new tokens get what one pass gives them.

    Rows are ragged, absent tokens hold NaN, queries and keys are turned by their positions.
    """
    for mask in (*MASKS, *WIDE):
        for seed in range(4 * reading.seed, 4 * reading.seed + 4):
            History(reading.factory, mask, tolerance=reading.tolerance, seed=seed).live()


LAWS: Suite = (
    any_split_equals_one_pass,
    left_padding_is_no_token,
    right_padding_is_no_token,
    ragged_rows_keep_their_own_time,
    padding_is_remembered,
    rollback_forgets,
    rows_may_be_reordered,
    a_refusal_changes_nothing,
    tells_what_it_holds,
    any_history_equals_one_pass,
)


def check_cache(
    factory: Callable[[], Cache],
    *,
    tolerance: float = 1e-10,
    seed: int = 0,
    thorough: bool = False,
) -> None:
    """Hold a cache to the law that any split of a text into chunks equals one pass.

    A `CrossCache` is held to the law that every step reads the context itself, a `RingCache` to
    the law that a split under its window equals one pass, a `QuantizedCache` also to its word on
    how far it is off.

    Args:
        factory: Makes an empty cache with room for forty tokens at least.
        tolerance: How far outputs may be off, as a share of the largest; more for a cache that
            rounds what it keeps.
        seed: Seeds the text.
        thorough: Try ten texts.

    Raises:
        LawBroken: If the cache breaks a law; the message names the law and the case.

    Example:
        >>> from manyheads.cache import GrowingCache
        >>> from manyheads.laws import check_cache
        >>> check_cache(GrowingCache)
    """
    for chosen in range(seed, seed + (10 if thorough else 1)):
        if isinstance(factory(), CrossCache):
            hold(CONTEXT_LAWS, Holding(factory, tolerance, chosen))  # type: ignore[arg-type]
        elif isinstance(factory(), RingCache):
            hold(RING_LAWS, Rolling(factory, tolerance, chosen))  # type: ignore[arg-type]
        else:
            hold(LAWS, Reading(factory, tolerance, chosen))
        if isinstance(factory(), QuantizedCache):
            hold(ROUNDING_LAWS, Rounding(factory, chosen))  # type: ignore[arg-type]


def read(cache: Cache, text: Text, split: Sequence[int], mask: str) -> Tensor:
    """The outputs of a text that comes in chunks, each with a mask that describes it alone."""
    outputs, start = [], 0
    for length in split:
        outputs.append(_step(cache, text, start, start + length, mask))
        start += length
    return torch.cat(outputs, dim=2)


def _step(cache: Cache, text: Text, start: int, stop: int, mask: str) -> Tensor:
    chunk = text.slice(start, stop)
    rule = MASKS[mask](text.slice(0, stop), chunk)
    if chunk.keep is not None:
        rule = rule & Padding(chunk.keep)
    return attend(cache, chunk, rule)


def _require_cache_error(reading: Reading, name: str, action: Callable[[], object]) -> None:
    try:
        action()
    except CacheError:
        return
    require(False, f"{name}, {reading}", "it was taken without a word")
