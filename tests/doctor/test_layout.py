"""Where rows read one another, the layout in which they do not is named, if there is one."""

import pytest
import torch
from tests.museum.exhibit import HEADS, WIDTH, stream
from tests.museum.layers import LengthFirst, LengthFirstEncoder, MeanOfBatch
from tests.museum.styles import Fused
from torch import nn

from manyheads.doctor import Facts, examine

LENGTH = "Read as (length, batch, ...) its rows are strangers: if that is how its input and "
BATCH = LENGTH.replace("(length, batch, ...)", "(batch, length, ...)")


@pytest.mark.parametrize("model", [LengthFirst, LengthFirstEncoder])
def test_a_layer_that_wants_the_length_first_is_told_what_to_declare(
    model: type[nn.Module],
) -> None:
    (found,) = examine(model(), stream()).findings
    assert found.code == "batch_mixing"
    assert found.cure.startswith(LENGTH)
    assert 'declare Facts(layout="length") and examine it again. If not: Look at' in found.cure
    assert examine(model(), stream().transpose(0, 1), facts=Facts(layout="length")).healthy


def test_a_layer_that_wants_the_batch_first_is_told_so_too() -> None:
    (found,) = examine(Fused(), stream(), facts=Facts(layout="length")).findings
    assert found.code == "batch_mixing"
    assert found.cure.startswith(BATCH)
    assert 'Facts(layout="batch")' in found.cure


def test_rows_that_read_one_another_either_way_are_no_matter_of_layout() -> None:
    (found,) = examine(MeanOfBatch(), stream()).findings
    assert found.cure.startswith("Look at the named part")


def test_masks_are_read_in_the_layout_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH)
    padding = torch.zeros(2, 13, dtype=torch.bool)
    report = examine(layer, stream().transpose(0, 1), src_key_padding_mask=padding)
    assert report.facts.layout == "length"
    assert report.healthy
