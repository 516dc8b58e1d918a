"""The laws of models of text that read through caches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from manyheads.cache import Cache, GrowingCache, RingCache
from manyheads.laws.law import Suite, hold, require_close

LENGTH, BATCH, STEPS = 9, 3, 8

SPLITS = ((9,), (1,) * 9, (4, 5), (8, 1), (2, 0, 3, 4))
"""Lengths of the chunks in which nine tokens come."""


@runtime_checkable
class Readable(Protocol):
    """A model of text: tokens, positions and caches in, logits of each next token out."""

    config: Any

    def __call__(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Logits (batch, length, vocab)."""

    def new_caches(self, kind: Callable[[], Cache] = ...) -> list[Cache]:
        """An empty cache for each layer."""


@dataclass(frozen=True)
class Trial:
    """A model, a kind of cache, and how nearly what is cached must be what is not."""

    model: Readable
    kind: Callable[[], Cache]
    tolerance: float
    seed: int

    def __str__(self) -> str:
        cache, model = type(self.kind()).__name__, type(self.model).__name__
        return f"model={model}, cache={cache}, seed={self.seed}"

    def story(self, seed: int | None = None) -> "Story":
        """A text with empty caches."""
        return Story(self, self.seed if seed is None else seed)


class Story:
    """A text that is read, taken back and continued by other rows, beside its caches.

    Args:
        trial: The model.
        seed: Seeds all that is drawn.
    """

    def __init__(self, trial: Trial, seed: int) -> None:
        self.trial, self.seed = trial, seed
        self.draw = torch.Generator().manual_seed(seed)
        self.caches = trial.model.new_caches(trial.kind)
        self.done: list[str] = []
        self.tokens = torch.zeros(BATCH, 0, dtype=torch.long)
        self.positions = torch.zeros(BATCH, 0, dtype=torch.long)

    def __str__(self) -> str:
        return f"{self.trial}, after: {'; '.join(self.done)}"

    def read(self, length: int, lengths: Sequence[int] | None = None) -> None:
        """Read more tokens, of rows padded on the left where lengths are given."""
        self.done.append(f"read {length}{'' if lengths is None else f' of {list(lengths)}'}")
        batch = len(self.tokens)
        vocabulary = self.trial.model.config.vocab_size
        new = torch.randint(0, vocabulary, (batch, length), generator=self.draw)
        place = torch.arange(length).expand(batch, -1)
        if lengths is not None:
            place = place - length + torch.tensor(lengths)[:, None]
        after = self.positions.amax(1, keepdim=True) + 1 if self.positions.numel() else 0
        given = torch.where(place < 0, -1, place + after)
        self.tokens = torch.cat((self.tokens, new), dim=1)
        self.positions = torch.cat((self.positions, given), dim=1)
        model, told = self.trial.model, given if lengths is not None else None
        with torch.no_grad():
            found = model(new, positions=told, caches=self.caches)
            right = model(self.tokens, positions=self.positions)
        there = given >= 0
        right = right[:, right.shape[1] - length :]
        require_close(
            "logits", found[there], right[there], self, tolerance=self.trial.tolerance
        )  # fmt: skip

    def rollback(self, count: int) -> None:
        """Take back the last tokens, as far as every cache can."""
        can = [x.can_undo if isinstance(x, RingCache) else x.length for x in self.caches]
        count = min(count, *can) if can else count
        self.done.append(f"rollback {count}")
        for cache in self.caches:
            cache.rollback(count)
        left = self.tokens.shape[1] - count
        self.tokens, self.positions = self.tokens[:, :left], self.positions[:, :left]

    def reorder(self, rows: Sequence[int]) -> None:
        """Continue other rows, perhaps more or fewer."""
        self.done.append(f"reorder {list(rows)}")
        index = torch.tensor(rows)
        for cache in self.caches:
            if cache.length:
                cache.reorder(index)
        self.tokens, self.positions = self.tokens[index], self.positions[index]

    def live(self) -> None:
        """Do some drawn steps."""
        self.read(5, lengths=[5, *(self._number(1, 5) for _ in range(BATCH - 1))])
        for _ in range(STEPS):
            step = self._number(0, 3)
            if step == 2:
                self.rollback(self._number(0, 3))
            elif step == 3:
                rows = [self._number(0, len(self.tokens) - 1) for _ in range(self._number(1, 4))]
                self.reorder(rows)
            else:
                self.read(self._number(1, 3))

    def _number(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=self.draw))


def any_split_of_a_text_equals_one_pass(trial: Trial) -> None:
    """However a text is split into chunks, its logits are those of one pass."""
    for split in SPLITS:
        story = trial.story()
        for length in split:
            story.read(length)


def padded_prompts_go_on_as_they_would_alone(trial: Trial) -> None:
    """Rows padded on the left, by positions below 0, and then continued, are those of one pass."""
    for split in SPLITS:
        story = trial.story()
        story.read(LENGTH, lengths=[LENGTH, 1, 6])
        for length in split:
            story.read(length)


def any_story_equals_one_pass(trial: Trial) -> None:
    """After any reads, rollbacks and reorders, new tokens get the logits of one pass."""
    for seed in range(4 * trial.seed, 4 * trial.seed + 4):
        trial.story(seed).live()


LAWS: Suite = (
    any_split_of_a_text_equals_one_pass,
    padded_prompts_go_on_as_they_would_alone,
    any_story_equals_one_pass,
)


def check_model(
    model: Readable,
    kind: Callable[[], Cache] = GrowingCache,
    *,
    tolerance: float = 1e-10,
    seed: int = 0,
    thorough: bool = False,
) -> None:
    """Hold a model of text to the law that what it reads through caches is what it reads at once.

    Args:
        model: In eval mode, with room for forty tokens at least; best in float64.
        kind: Makes an empty cache.
        tolerance: How far logits may be off, as a share of the largest.
        seed: Seeds the texts.
        thorough: Try ten times as many.

    Raises:
        LawBroken: If the model breaks a law; the message names the law and the case.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from manyheads.laws import check_model
        >>> class Unigram:  # reads nothing but the last token, so it needs no cache
        ...     config = SimpleNamespace(vocab_size=5)
        ...     table = torch.eye(5)
        ...
        ...     def __call__(self, tokens, *, positions=None, caches=None):
        ...         return self.table[tokens]
        ...
        ...     def new_caches(self, kind=None):
        ...         return []
        >>> check_model(Unigram())
    """
    for chosen in range(seed, seed + (10 if thorough else 1)):
        hold(LAWS, Trial(model, kind, tolerance, chosen))
