"""Numbers of heads that a user brings to a page: what is taken, and what is refused."""

import json

import pytest
import torch
from tests.lens.test_html import Page, watched

from manyheads.errors import OptionError, ShapeError
from manyheads.lens import portray, write_page

GOOD = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def layers_of(path):
    return json.loads(Page(path.read_text("utf-8")).scripts["content"])["layers"]


@pytest.mark.parametrize(
    "values",
    [GOOD, GOOD.half(), GOOD.int(), GOOD.tolist(), {"layers.0": GOOD[0], "layers.1": [3, 4]},
     GOOD.clone().requires_grad_()],
)  # fmt: skip
def test_numbers_are_those_of_the_layers_they_were_given_for(tmp_path, values):
    found = [portray(call) for call in watched(3)]
    path = write_page(found, list("abc"), path=tmp_path / "a.html", numbers={"mine": values})
    assert [layer["numbers"]["mine"] for layer in layers_of(path)] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        (GOOD, OptionError, "numbers must be given by their name; got numbers=Tensor. Write"),
        ({"mine": GOOD[0]}, ShapeError, r"\(layers, heads\) with 2 layers and 2 heads in "
         r"'layers.0'; got 'mine' of shape \(2,\). Average"),
        ({"mine": GOOD[:1]}, ShapeError, r"'mine' of shape \(1, 2\)"),
        ({"mine": torch.zeros(2, 3)}, ShapeError, r"'mine' of shape \(2, 3\)"),
        ({"mine": torch.zeros(2, 2, device="meta")}, OptionError, "must hold values"),
        ({"mine": None}, ShapeError, "'mine' of NoneType"),
        ({"mine": 3}, ShapeError, "'mine' of int"),
        ({"mine": [["a", "b"], [1, 2]]}, ShapeError, "'mine' of list"),
        ({"mine": {"layers.0": GOOD[0]}}, ShapeError, "'mine' of .*layers.0.*, none of 'layers.1'"),
        ({"mine": GOOD / 0 * 0}, OptionError, "must be finite; got 'mine' of nan at head 0"),
        ({"mine": GOOD / 0}, OptionError, "numbers must be finite; got 'mine' of inf"),
        ({"": GOOD}, OptionError, "names of 1 to 40 characters; got ''"),
        ({3: GOOD}, OptionError, "names of 1 to 40 characters; got 3"),
        ({"x" * 41: GOOD}, OptionError, "names of 1 to 40 characters"),
        ({"peak": GOOD}, OptionError, "names of their own; got 'peak'"),
        ({"previous token": GOOD}, OptionError, "names of their own; got 'previous token'"),
        ({"difference": GOOD}, OptionError, "names of their own; got 'difference'"),
    ],
)  # fmt: skip
def test_numbers_that_say_nothing_of_heads_are_refused(tmp_path, numbers, error, message):
    found = [portray(call) for call in watched(3)]
    with pytest.raises(error, match=message):
        write_page(found, list("abc"), path=tmp_path / "a.html", numbers=numbers)
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_several_readings_are_given_by_their_names(tmp_path):
    both = {name: [portray(call) for call in watched(3)] for name in ("a", "b")}
    path = write_page(both, list("xyz"), path=tmp_path / "a.html", numbers={"b": {"mine": GOOD}})
    told = [layer["numbers"].get("mine") for layer in layers_of(path)]
    assert told == [None, None, [1, 2], [3, 4]]
    with pytest.raises(OptionError, match="by the name of a reading; got 'mine', and readings of"):
        write_page(both, list("xyz"), path=tmp_path / "b.html", numbers={"mine": GOOD})
