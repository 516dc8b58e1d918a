import math

import pytest
import torch
from tests.lens.hand import TEXT, looked_up, looks_at

import manyheads as mh
from manyheads.errors import OptionError, ShapeError
from manyheads.lens import summarize_heads
from manyheads.lens.summary import MEASURES


def test_two_opposite_heads_are_sharp_each_and_uniform_on_average():
    """HEAD-01: the mean of entropies is 0, the entropy of the mean is ln 2."""
    heads = torch.stack([torch.eye(2), torch.eye(2).flip(0)])
    first, second = summarize_heads({"layer": heads})
    assert math.log(first.effective_keys) == math.log(second.effective_keys) == 0
    assert (first.strongest, second.strongest) == ((0, 1), (1, 0))
    (average,) = summarize_heads({"layer": heads.mean(dim=0, keepdim=True)})
    assert math.log(average.effective_keys) == pytest.approx(0.693147181)
    assert average.peak == 0.5


def test_numbers_worked_by_hand():
    (head,) = summarize_heads({"a": torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]])})
    # Entropies ln 2 and 0; largest weights 0.5 and 1.
    assert head.effective_keys == pytest.approx(2**0.5)
    assert head.peak == pytest.approx(0.75)


def test_queries_that_see_nobody_do_not_count():
    (head,) = summarize_heads({"a": torch.tensor([[[0.0, 0.0], [0.0, 1.0]]])})
    assert (head.effective_keys, head.peak, head.strongest) == (1.0, 1.0, (-1, 1))
    (blind,) = summarize_heads({"a": torch.zeros(1, 2, 2)})
    assert (blind.effective_keys, blind.peak, blind.strongest) == (0.0, 0.0, (-1, -1))


def test_what_is_no_set_of_weights_is_refused():
    with pytest.raises(ShapeError, match="must map a layer's name"):
        summarize_heads(torch.eye(2))
    with pytest.raises(OptionError, match="must be finite"):
        summarize_heads({"a": torch.full((1, 2, 2), torch.nan)})


def test_a_head_is_named_after_what_it_looks_at():
    length = len(TEXT)
    heads = {
        "previous token": looks_at([0, *range(length - 1)]),
        "first token": looks_at([0] * length),
        "itself": looks_at(list(range(length))),
        "next token": looks_at([*range(1, length), length - 1]),
        "same token before": looks_at(looked_up(TEXT, 0)),
        "what followed last time": looks_at(looked_up(TEXT, 1)),
        "evenly": torch.full((1, 1, length, length), 1 / length),
    }
    found = summarize_heads({"layer": torch.cat(list(heads.values()), dim=1)[0]}, TEXT)
    assert [head.does for head in found] == list(heads)


def test_a_uniform_causal_head_is_not_taken_for_a_sink():
    weights = torch.ones(4, 4).tril()
    (head,) = summarize_heads({"a": (weights / weights.sum(-1, keepdim=True))[None]})
    assert head.does == "evenly"
    assert head.first > 0.3


def test_calls_of_a_watched_model_and_their_written_weights_are_summed_up_alike():
    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(16, 2).eval()
    x = torch.randn(1, 11, 16)
    with mh.probe.watch(layer) as calls:
        layer(x, mask=mh.Causal())
    _, weights = layer.with_weights(x, mask=mh.Causal())
    of_calls = summarize_heads(calls, TEXT)
    of_written = summarize_heads({"(the model)": weights[0]}, TEXT)
    for one, other in zip(of_calls, of_written, strict=True):
        assert (one.layer, one.strongest, one.does) == (other.layer, other.strongest, other.does)
        for name in MEASURES:
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-5)
