"""Histories that hypothesis finds: what caches went through, and models with them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.generation.models import EXACT, Words
from tests.models.generation.test_decoder_texts import MANNERS, decoder

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.laws import LawBroken, check_cache, check_model
from manyheads.laws.history import History
from manyheads.laws.model import Trial
from manyheads.laws.text import MASKS

CACHES: dict[str, Callable[[], Cache]] = {
    **EXACT,
    "fixed": lambda: mh.FixedCache(96),
    "paged": lambda: mh.PagedCache(BlockPool(3)),
}
del CACHES["ring"]  # its histories are those of its window: laws.ring draws them

ROWS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5)),
        st.tuples(st.just("rollback"), st.integers(0, 6)),
        st.tuples(st.just("reorder"), ROWS),
    ),
    max_size=8,
)


@pytest.mark.parametrize("kind", CACHES)
@given(steps=STEPS, mask=st.sampled_from(sorted(MASKS)), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_a_cache_is_one_pass_after_anything(
    kind: str, steps: list[Any], mask: str, seed: int
) -> None:
    history = History(CACHES[kind], mask, tolerance=1e-10, seed=seed)
    history.append(2)
    for name, argument in steps:
        if name == "append":
            history.append(argument)
        elif name == "rollback":
            history.rollback(min(argument, history.whole.length))
        elif history.whole.length:
            rows = [row % history.whole.batch for row in argument]
            history.reorder(torch.tensor(rows))


@pytest.mark.parametrize("kind", EXACT)
@given(
    prompts=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(1, 3)),
            st.tuples(st.just("rollback"), st.integers(0, 4)),
            st.tuples(st.just("reorder"), ROWS),
        ),
        max_size=7,
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_a_model_reads_on_as_one_pass_after_anything(
    kind: str, prompts: list[int], steps: list[Any], seed: int
) -> None:
    story = Trial(Words(), EXACT[kind], 1e-10, seed).story()
    story.read(4, lengths=prompts)
    for name, argument in steps:
        if name == "read":
            story.read(argument)
        elif name == "rollback":
            story.rollback(argument)
        else:
            story.reorder([row % len(story.tokens) for row in argument])


@pytest.mark.parametrize("kind", EXACT)
def test_a_row_may_be_taken_back_into_its_padding(kind: str) -> None:
    story = Trial(Words(), EXACT[kind], 1e-10, 0).story()
    story.read(4, lengths=[1, 4, 2])
    story.rollback(2)
    for length in (1, 2, 5):
        story.read(length)


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("kind", EXACT)
def test_our_decoders_keep_the_laws_of_models(kind: str, manner: str) -> None:
    check_model(decoder(manner, max_length=64), EXACT[kind], seed=1)


def test_a_window_and_its_ring_keep_the_laws_of_models() -> None:
    check_model(decoder("window"), lambda: mh.RingCache(5, undo=3))


def test_a_rounding_cache_keeps_its_word() -> None:
    check_cache(lambda: mh.QuantizedCache(8, recent=8, group=8), tolerance=0.04)
    check_cache(lambda: mh.QuantizedCache(4, recent=4, group=16), tolerance=0.5)


class Boastful(mh.QuantizedCache):
    """Says that it is half as far off as it is."""

    @property
    def error(self) -> tuple[float, float]:
        key, value = super().error
        return key / 2, value / 2


def test_a_cache_that_is_further_off_than_it_says_is_found() -> None:
    with pytest.raises(LawBroken, match="reads_back_what_it_was_given"):
        check_cache(lambda: Boastful(8, recent=4, group=4), tolerance=0.1)


class Late(Words):
    """Forgets where a padded row stands once its prompt is read."""

    def forward(
        self, tokens: Any, *, positions: Any = None, caches: Any = None, **rest: Any
    ) -> Any:
        if positions is None and caches and caches[0].length:
            positions = caches[0].length
        return super().forward(tokens, positions=positions, caches=caches, **rest)


class Rows(Words):
    """Lets keys of its last layer stay where they are when rows are reordered."""

    def new_caches(self, kind: Any = mh.GrowingCache) -> list[Cache]:
        class Stubborn(mh.GrowingCache):
            def reorder(self, index: Any) -> None:
                super().reorder(index.clamp(max=0))

        return [kind(), Stubborn()]


@pytest.mark.parametrize(
    ("model", "law"),
    [(Late, "padded_prompts_go_on_as_they_would_alone"), (Rows, "any_story_equals_one_pass")],
)
def test_a_model_that_breaks_a_law_is_found(model: type[Words], law: str) -> None:
    with pytest.raises(LawBroken, match=law):
        check_model(model())
