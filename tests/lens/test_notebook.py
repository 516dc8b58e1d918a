"""The explorer as a widget, on Python's side; in a browser: test_browser.py."""

import sys

import pytest
import torch

import manyheads as mh
from manyheads.errors import MissingExtraError, OptionError, ShapeError
from manyheads.lens import explore, notebook, portray


@pytest.fixture
def call():
    q, k, v = torch.randn(3, 2, 3, 200, 8)
    return mh.statistics(q, k, v, mh.Causal())


def asked(widget, **message):
    """What a widget answers to a message of the explorer."""
    sent = []
    widget.send = lambda content, buffers=None: sent.append((content, buffers))
    widget._handle_custom_msg(message, [])
    ((content, buffers),) = sent
    return content, buffers


def test_any_window_of_any_head_is_answered_exactly(call):
    labels = [str(i) for i in range(200)]
    found = [portray(call, layer=f"layer {i}", sequence=i, live=True) for i in range(2)]
    widget = explore(found, labels, title="two sequences")
    assert widget.content["title"] == "two sequences"
    assert [layer["live"] for layer in widget.content["layers"]] == [True, True]
    content, (weights,) = asked(widget, id="a", place=4, rows=[150, 160], keys=[7, 9])
    assert content == {"id": "a"}
    told = torch.frombuffer(bytearray(weights), dtype=torch.float32).reshape(10, 2)
    torch.testing.assert_close(told, call.weights(slice(150, 160), slice(7, 9))[1, 1])


def test_what_is_kept_for_questions_does_not_change_with_the_model(call):
    labels = [str(i) for i in range(200)]
    widget = explore([portray(call, live=True)], labels)
    before = call.weights(5)[0, 0]
    call.call.q.zero_()
    _, (weights,) = asked(widget, id="a", place=0, rows=[5, 6], keys=[0, 200])
    told = torch.frombuffer(bytearray(weights), dtype=torch.float32)[None]
    torch.testing.assert_close(told, before)


def test_a_question_that_cannot_be_answered_is_told_why(call):
    labels = [str(i) for i in range(200)]
    still = explore([portray(call)], labels)
    assert still.content["layers"][0]["live"] is False
    content, buffers = asked(still, id="b", place=0, rows=[0, 1], keys=[0, 1])
    assert buffers is None
    assert content == {"id": "b", "error": "attention was portrayed without live=True"}
    for wrong in ({"place": 9, "rows": [0, 1], "keys": [0, 1]}, {"place": 0}, {}):
        assert "error" in asked(explore([portray(call, live=True)], labels), id="c", **wrong)[0]


def test_what_a_page_refuses_a_widget_refuses(call):
    with pytest.raises(OptionError, match="portraits must hold"):
        explore([], [])
    with pytest.raises(ShapeError, match="query_labels must be as many as q_len=200"):
        explore([portray(call)], ["too", "few"])


def test_without_anywidget_it_says_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    notebook._widget.cache_clear()
    with pytest.raises(MissingExtraError, match=r"explore must have anywidget .* pip install"):
        explore([portray(call)], [str(i) for i in range(200)])
