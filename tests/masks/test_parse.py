import pytest
import torch

from manyheads.errors import ManyheadsError, MaskError, OptionError
from manyheads.masks import (
    MASKS,
    Causal,
    Dilated,
    Documents,
    Dyadic,
    Fixed,
    Global,
    Neighbourhood,
    Padding,
    PerHead,
    Prefix,
    RandomBlocks,
    Strided,
    Tiles,
    Window,
)
from manyheads.masks.parse import parse_mask


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("Causal()", Causal()),
        ("  Causal() &\n Window(256) ", Causal() & Window(256)),
        ("Causal() & (Window(8) | Global((0, 5)))", Causal() & (Window(8) | Global((0, 5)))),
        ("Causal() & Window(8) & Global([0])", Causal() & Window(8) & Global(0)),
        ("~Window(before=3, after=None)", ~Window(before=3)),
        ("Causal() | Prefix(4)", Causal() | Prefix(4)),
        ("~(Prefix(1) | Prefix(length=2))", ~(Prefix(1) | Prefix(2))),
        ("PerHead((Causal(), Causal() & Window(2)))", PerHead((Causal(), Causal() & Window(2)))),
        ("Causal() & Dilated(3, step=2)", Causal() & Dilated(3, step=2)),
        ("Dyadic('halves')", Dyadic("halves")),
        ("Neighbourhood(8, radius=2)", Neighbourhood(8, radius=2)),
        ("RandomBlocks(3, block=64, length=4096)", RandomBlocks(3, block=64, length=4096)),
    ],
)
def test_a_mask_is_read_as_python_writes_it(text, mask):
    parsed = parse_mask(text)
    assert parsed == mask
    assert repr(parsed) == repr(mask)


@pytest.mark.parametrize(
    "mask",
    [
        Causal() & (Window(8) | Global((0, 5))) & ~Dilated(2, step=3),
        ~(Strided(4) & Fixed(4, summary=2)) & Dyadic("halves"),
        Window(before=3) & Window(before=None, after=2),
        RandomBlocks(2, block=3, length=48, seed=5) | Global(()),
        Neighbourhood(4, radius=1) | Tiles(4, tile=3, shift=1),
        PerHead((Causal() & Prefix(0), PerHead((Window(1), Window(2))))),
        PerHead((Causal(),)),
    ],
    ids=repr,
)
def test_what_a_mask_prints_is_read_as_that_mask(mask):
    assert parse_mask(repr(mask)) == mask


def test_every_mask_of_the_family_but_those_of_code_and_tensors_can_be_written():
    with pytest.raises(MaskError) as refused:
        parse_mask("Nothing()")
    for name in MASKS.keys() - {"Rule", "Dense"}:
        assert name in str(refused.value)


def test_numbers_become_tensors_where_a_mask_takes_one():
    expected = Padding(lengths=torch.tensor([1, 3])).dense(3, batch=2)
    assert torch.equal(parse_mask("Padding(lengths=(1, 3))").dense(3, batch=2), expected)
    expected = Documents(torch.tensor([[0, 0, 1]])).dense(3)
    assert torch.equal(parse_mask("Documents((0, 0, 1))").dense(3), expected)
    assert torch.equal(parse_mask("Documents(ids=[[0, 0, 1]])").dense(3), expected)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch pwned')",
        "Causal().__class__",
        "(lambda: 0)()",
        "Causal() and Window(3)",
        "Causal() + Window(3)",
        "Causal() & 1",
        "not Causal()",
        "[Causal()][0]",
        "Causal() if 1 else Window(2)",
        "Window(2 ** 3)",
        "Window(len(()))",
        "Window(*(1, 2))",
        "Window(**{})",
        "Window(f'{1}')",
        "Window('3')",
        "Window(2.5)",
        "Window(True)",
        "Window((x := 3))",
        "Rule(print, 'print')",
        "Dense(1)",
        "Dyadic('thirds')",
        "Prefix('4')",
        "Padding('110')",
        "Documents('001')",
        "Causall()",
        "Causal",
        "",
        "Causal() &",
        "Causal(); Window(2)",
        "import os",
        "Causal(1)",
        "Window(size=3, width=2)",
        "Documents(((1, 2), (3,)))",
        "Documents(1)",
        "Padding(lengths=Causal())",
        "Window(" + "9" * 1900 + "9" * 5000 + ")",
        "Window(Causal())",
        "~" * 1900 + "Causal()",
        "(" * 900 + "Causal()" + ")" * 900,
        "Causal()" + " & Causal()" * 170 + "\0",
    ],
)
def test_whatever_else_a_text_says_is_refused_and_never_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManyheadsError):
        parse_mask(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Causal() &", r"as written in Python; got .Causal\(\) &. \(invalid syntax\). Write, for"),
        ("Causal", r"A mask must be called; got 'Causal' in 'Causal'. Write Causal\(\)"),
        ("Windw(3)", r"must join Causal, Window, .* got 'Windw\(3\)' in .* Did you mean 'Window'"),
        ("Causal() & Widow", "got 'Widow' in .* Did you mean 'Window'"),
        ("Causal() + Window(3)", r"got 'Causal\(\) \+ Window\(3\)' in .* Build any other mask"),
        (
            "Causal() and Window(3)",
            r"joined by & \| ~; got .* Write & for and, \| for or, ~ for not",
        ),
        ("not Causal()", r"joined by & \| ~; got 'not Causal\(\)'"),
        ("Window(2.5)", "must be a whole number, a word, None, a tuple, or a mask; got"),
        (
            "Window(width=3)",
            r"arguments of its constructor; got 'Window\(width=3\)': Window got an",
        ),
        ("x" * 3000, "at most 2000 characters; got 3000 characters"),
        (3, "at most 2000 characters; got int"),
    ],
)
def test_an_error_says_which_part_and_what_to_write(text, message):
    with pytest.raises(MaskError, match=message):
        parse_mask(text)


def test_a_number_out_of_range_is_the_masks_own_error():
    with pytest.raises(OptionError, match="size"):
        parse_mask("Causal() & Window(-1)")
