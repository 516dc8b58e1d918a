import pytest

from manyheads.errors import OptionError
from manyheads.tasks import Vocabulary
from manyheads.tasks.vocabulary import BOS_ID, EOS_ID, PAD_ID


def test_ids_zero_to_two_are_padding_begin_and_end() -> None:
    vocabulary = Vocabulary("ab")
    assert (PAD_ID, BOS_ID, EOS_ID) == (0, 1, 2)
    assert vocabulary.encode("ba") == [4, 3]
    assert len(vocabulary) == 5


def test_decode_stops_at_the_end_and_skips_padding() -> None:
    assert Vocabulary("ab").decode([BOS_ID, 3, PAD_ID, 4, EOS_ID, 3]) == "ab"


def test_characters_are_collected_in_the_order_of_their_code_points() -> None:
    assert Vocabulary.of(["月b", "ab"]).characters == "ab月"


def test_unknown_characters_are_named() -> None:
    with pytest.raises(OptionError, match=r"got unknown='xz' in text='zax'\. Leave them out"):
        Vocabulary("ab").encode("zax")


@pytest.mark.parametrize("bad", [5, -1])
def test_an_id_outside_is_named(bad: int) -> None:
    with pytest.raises(OptionError, match=rf"ids must be from 0 to 4; got id={bad}\."):
        Vocabulary("ab").decode([3, bad])


@pytest.mark.parametrize("characters", ["", "aa"])
def test_characters_stand_once(characters: str) -> None:
    with pytest.raises(OptionError, match="at least one, each once"):
        Vocabulary(characters)
