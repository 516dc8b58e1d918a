import math

import pytest
import torch

from manyheads.errors import OptionError, ShapeError
from manyheads.lens import summarize_heads


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
