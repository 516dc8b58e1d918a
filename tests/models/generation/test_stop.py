"""Where a text ends, and what of it is told before it is certain."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.generation.models import Words, greedy

import manyheads as mh
from manyheads.errors import OptionError
from manyheads.models.generation.told import Told

LETTERS = ["a", "b", "ab", "ba", "aab", "", "abb", "c"]


def spell(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


@given(
    tokens=st.lists(st.integers(0, len(LETTERS) - 1), max_size=12),
    strings=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    least=st.integers(0, 4),
)
@settings(max_examples=300, deadline=None)
def test_what_is_told_is_never_taken_back(
    tokens: list[int], strings: list[str], least: int
) -> None:
    told, parts, used = Told(mh.Stop(strings=tuple(strings), decode=spell)), [], 0
    for token in tokens:
        used += 1
        parts.append(told.add(token, may_end=used > least))
        if told.ended:
            break
    parts.append(told.rest())
    text, whole = "".join(parts), spell(tokens[:used])
    assert whole.startswith(text)
    if not told.ended:
        assert text == whole
    if not least:
        ends = [whole.find(string) for string in strings if string in whole]
        assert told.ended is bool(ends)
        assert text == (whole[: min(ends)] if ends else whole)
        before = spell(tokens[: used - 1])
        assert not any(string in before for string in strings), "it ends as soon as it can"


def test_text_comes_as_soon_as_it_is_certain() -> None:
    told = Told(mh.Stop(strings=("abc",), decode=spell))
    assert [told.add(token) for token in (0, 1, 0, 2, 7)] == ["", "", "ab", "a", ""]
    assert told.ended and told.text == "aba"


def test_half_a_character_waits_for_the_other_half() -> None:
    pieces = ["注".encode()[:1], "注".encode()[1:], b"!", b"\xff"]

    def decode(tokens: list[int]) -> str:
        return b"".join(pieces[token] for token in tokens).decode(errors="replace")

    told = Told(mh.Stop(decode=decode))
    assert [told.add(token) for token in (0, 1, 2, 0)] == ["", "注", "!", ""]
    assert told.rest() == "\ufffd"


def test_a_decoder_that_changes_its_mind_is_refused() -> None:
    told = Told(mh.Stop(decode=lambda tokens: ["a ", "a."][len(tokens) - 1]))
    told.add(0)
    with pytest.raises(OptionError, match="decode must only lengthen its text as tokens come"):
        told.add(0)


class Script(Words):
    """A model that writes one text whatever it is asked, and may be asked from its middle."""

    def __init__(self, *texts: list[int]) -> None:
        super().__init__(vocab_size=len(LETTERS))
        self.texts = texts

    def forward(self, tokens: torch.Tensor, **options: object) -> torch.Tensor:
        logits = super().forward(tokens, **options) * 0  # type: ignore[arg-type]
        self.at = 0 if tokens.shape[1] > 1 else self.at + 1
        for row, text in enumerate(self.texts):
            logits[row, -1, text[self.at]] = 9.0
        return logits


def test_rows_end_by_tokens_and_strings_each_in_its_own_time() -> None:
    model = Script([0, 0, 1, 7, 7, 7], [0, 2, 6, 1, 1, 0], [0, 0, 0, 0, 0, 0])
    stop = mh.Stop(tokens=(7,), strings=("bab",), decode=spell)
    steps = list(mh.stream(model, [[1, 1]] * 3, max_new_tokens=6, stop=stop))
    assert torch.stack([step.tokens for step in steps], 1).tolist() == [
        [0, 0, 1, 7, -1, -1],
        [0, 2, 6, -1, -1, -1],
        [0, 0, 0, 0, 0, 0],
    ]
    # "b" may begin "bab"; at the end nothing follows, so it is told.
    assert [step.text[0] for step in steps] == ["a", "a", "", "b", "", ""]
    assert [step.text[1] for step in steps] == ["a", "a", "", "", "", ""]
    assert [step.text[2] for step in steps] == ["a"] * 6
    assert [step.done.tolist() for step in steps[2:4]] == [
        [False, True, False],
        [True, True, False],
    ]


def test_all_ends_when_every_row_has() -> None:
    model = Script([7, 7, 7], [0, 7, 7])
    text = mh.generate(model, [[1, 1]] * 2, max_new_tokens=3, stop=mh.Stop(tokens=(7,)))
    assert text.tolist() == [[7, -1], [0, 7]]


def test_no_row_ends_before_its_least_length() -> None:
    model = Words()
    free = greedy(model, [3, 1], 12)
    ends = mh.Stop(tokens=(free[0], free[1]))
    assert mh.generate(model, [[3, 1]], max_new_tokens=12, stop=ends).shape[1] == 1
    text = mh.generate(model, [[3, 1]], max_new_tokens=12, min_new_tokens=5, stop=ends)[0].tolist()
    assert not {*ends.tokens} & {*text[:5]}
    written = [3, 1]
    for index, token in enumerate(text):
        logits = model(torch.tensor([written]))[0, -1]
        if index < 5:
            logits[list(ends.tokens)] = -torch.inf
        assert token == int(logits.argmax())
        written.append(token)
    script = Script([0, 1, 0, 0, 1, 0])
    stop = mh.Stop(strings=("ab",), decode=spell)
    steps = list(mh.stream(script, [[1, 1]], max_new_tokens=6, min_new_tokens=3, stop=stop))
    assert "".join(step.text[0] for step in steps) == "aba" and len(steps) == 5


def test_a_stop_that_cannot_be_is_named() -> None:
    with pytest.raises(OptionError, match="tokens must be several; got tokens=2"):
        mh.Stop(tokens=2)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="strings must be several; got strings='end'"):
        mh.Stop(strings="end", decode=spell)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="strings must hold at least one character each"):
        mh.Stop(strings=("",), decode=spell)
    with pytest.raises(OptionError, match="decode must be given where strings end a text"):
        mh.Stop(strings=("end",))
    with pytest.raises(OptionError, match=r"tokens must be ids; got tokens=\(None,\)"):
        mh.Stop(tokens=(None,))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"tokens must be ids; got tokens=\('END',\)"):
        mh.Stop(tokens=("END",))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="tokens must be several; got tokens=tensor"):
        mh.Stop(tokens=torch.tensor(2))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"strings must hold texts; got strings=\(2,\)"):
        mh.Stop(strings=(2,), decode=spell)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="decode must be a function from ids to text; got decod"):
        mh.Stop(decode="spell")  # type: ignore[arg-type]
    assert mh.Stop(tokens=torch.tensor([2, 3])).tokens == (2, 3)  # type: ignore[arg-type]
