import pytest

import manyheads as mh
from manyheads.cli import main

MASK = "Causal() & (Window(2) | Global(0))"


def test_a_mask_is_counted_and_drawn_as_its_method_does(capsys, tmp_path):
    picture = tmp_path / "mask.png"
    assert main(["look", "mask", MASK, "--length", "6", "--out", str(picture)]) == 0
    mask = mh.Causal() & (mh.Window(2) | mh.Global(0))
    counted, *drawn = capsys.readouterr().out.splitlines()
    assert counted == repr(mask.describe(6))
    assert drawn == [*mask.draw(6).splitlines(), f"The mask is drawn in {picture}"]
    assert picture.stat().st_size > 3000


def test_queries_are_the_last_of_the_keys(capsys):
    assert main(["look", "mask", "Causal()", "--length", "5", "--q-len", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["████·", "█████"]


@pytest.mark.parametrize(
    ("mask", "right"),
    [
        ("Documents((0, 0, 1))", ["██·", "██·", "··█"]),
        ("PerHead((Causal(), Window(1)))", 2 * 17 + 1),
        ("Padding(lengths=(17, 20))", 2 * 21 + 1),
        ("Causal()", 16),
    ],
)
def test_a_mask_tells_its_own_length_batch_and_heads(mask, right, capsys):
    assert main(["look", "mask", mask]) == 0
    drawn = capsys.readouterr().out.splitlines()[1:]
    assert drawn == right if isinstance(right, list) else len(drawn) == right


def test_squares_of_a_long_mask_share_a_character(capsys):
    assert main(["look", "mask", "Causal() & Window(4)", "--length", "12", "--block", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "A character is 4 queries and 4 keys: █ all see, ▒ some, · none.",
        *("▒··", "▒▒·", "·▒▒"),
    ]
    assert main(["look", "mask", "Causal()", "--length", "1000"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Windw(3)"], "got 'Windw(3)'"),
        (["Window(0)"], "size must be an int of at least 1; got size=0"),
        (["Causal()", "--length", "0"], "--length must be an int of at least 1"),
        (["Causal()", "--q-len", "-1"], "--q-len must be an int of at least 1"),
        (["Causal()", "--heads", "0"], "--heads must be an int of at least 1"),
        (["Causal()", "--block", "0"], "--block must be an int of at least 1"),
        (["Causal()", "--length", "100000"], "--length must leave at most 67108864 pairs"),
        (["PerHead((Causal(),))", "--heads", "3"], "num_heads=3 query heads; got 1"),
        (["Causal()", "--out", "mask.doc"], "path must end in one of"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_printed(arguments, message, capsys):
    assert main(["look", "mask", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
