import pytest
import torch

from manyheads.errors import OptionError
from manyheads.models import Transformer
from manyheads.tasks import Dates, Example, Vocabulary
from manyheads.training import Trained, alignment_mass, exact_match, small_config
from manyheads.training.evaluate import HeadMass

LETTERS = Vocabulary("abcd")


class Scripted(Transformer):
    """Writes the source, and looks where its table says."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__(small_config(Dates(locales=("zh",))))
        self.table = weights

    def generate(self, source, *, max_new_tokens, cached=True):  # type: ignore[no-untyped-def]
        return source

    def with_weights(self, source, target):  # type: ignore[no-untyped-def]
        return None, {"encoder.0": self.table, "decoder.0.cross": self.table}


def scripted(weights: torch.Tensor) -> Trained:
    return Trained(Scripted(weights), LETTERS, LETTERS, "copy", {}, 5)


def example(source: str, target: str) -> Example:
    return Example(source, target, ((0,), (1, 2)), ("first", "rest"), source)


def test_exact_match_counts_texts_without_a_mistake() -> None:
    model = scripted(torch.zeros(0))
    examples = [example("ab", "ab"), example("abc", "abc"), example("abc", "ab")]
    assert exact_match(model, examples) == pytest.approx(2 / 3)
    with pytest.raises(OptionError, match=r"examples must be at least one; got examples=0\."):
        exact_match(model, [])


def test_the_mass_of_a_head_is_what_lies_on_the_right_characters() -> None:
    # (batch 2, heads 2, target_len 3 with the end, source_len 3)
    one = torch.tensor([[[1.0, 0, 0], [0, 0.5, 0.25], [1, 0, 0]], [[0.2, 0.8, 0]] * 3])
    other = torch.tensor([[[0.5, 0, 0.5], [0.5, 0, 0.5], [1, 0, 0]], [[0.4, 0.6, 0]] * 3])
    mass = alignment_mass(
        scripted(torch.stack((one, other))), [example("abc", "ab"), example("abd", "dd")]
    )
    assert mass.keys() == {"first", "rest"}
    assert [(h.head, round(h.mass, 6)) for h in mass["first"]] == [(0, 0.75), (1, 0.3)]
    assert [(h.head, round(h.mass, 6)) for h in mass["rest"]] == [(1, 0.7), (0, 0.625)]
    assert str(mass["first"][0]) == "decoder.0.cross head 0: 0.75"
    with pytest.raises(OptionError, match="at least one"):
        alignment_mass(scripted(one), [])


def test_characters_that_come_from_nowhere_count_for_nothing() -> None:
    task = Dates(locales=("ru", "zh"))
    model = Trained(
        Transformer(small_config(task)),
        task.source_vocabulary,
        task.target_vocabulary,
        "dates",
        {},
        11,
    )
    mass = alignment_mass(model, task.split("test")[:600])  # more than are taken together
    assert mass.keys() == {"year", "month", "day"}
    for heads in mass.values():
        assert heads == sorted(heads, key=lambda h: -h.mass)
        assert all(0 < h.mass < 1 for h in heads)
        assert len(heads) == 8
    assert isinstance(mass["day"][0], HeadMass)
