import pytest
import torch

import manyheads as mh
from manyheads.errors import DeviceError, DTypeError, OptionError, PositionError, ShapeError


def grid(rows: int, columns: int) -> torch.Tensor:
    return torch.cartesian_prod(torch.arange(rows), torch.arange(columns))


@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
def test_an_axis_of_its_own_turns_its_block_as_a_rotary_does(pairs: str) -> None:
    x = torch.randn(2, 3, 6, 16, dtype=torch.float64)
    out = mh.Rotary(16, axes=mh.Axial(2), pairs=pairs)(x, coordinates=grid(2, 3))
    for axis in (0, 1):
        # In halves, pairs 4 * axis and on are features 4 * axis and on, and those 8 after them.
        first = torch.arange(4 * axis, 4 * axis + 4)
        block = (
            torch.cat((first, first + 8))
            if pairs == "halves"
            else torch.arange(8 * axis, 8 * axis + 8)
        )
        alone = mh.Rotary(8, pairs=pairs)(x[..., block], grid(2, 3)[:, axis])
        torch.testing.assert_close(out[..., block], alone)


@pytest.mark.parametrize("spectrum", ["own", "shared"])
def test_a_score_knows_the_offset_on_each_axis_alone(spectrum: str) -> None:
    rotary = mh.Rotary(16, axes=mh.Axial(2, spectrum=spectrum))
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)
    scores = [
        (
            rotary(q, coordinates=torch.tensor([[3 + y, 1 + x]]))
            * rotary(k, coordinates=torch.tensor([[y, x]]))
        ).sum()
        for y, x in ((0, 0), (5, 0), (0, 7), (-4, 9))
    ]
    for score in scores[1:]:
        torch.testing.assert_close(score, scores[0])
    turned = rotary(q, coordinates=torch.tensor([[1, 3]])) * rotary(
        k, coordinates=torch.tensor([[0, 0]])
    )
    assert (turned.sum() - scores[0]).abs() > 1e-3


def test_coordinates_may_be_fractions_and_rows_of_a_batch() -> None:
    rotary = mh.Rotary(8, axes=mh.Axial(2))
    x = torch.randn(2, 1, 3, 8)
    at = torch.rand(2, 3, 2) * 4 - 2
    out = rotary(x, coordinates=at)
    for row in (0, 1):
        torch.testing.assert_close(out[row], rotary(x[row : row + 1], coordinates=at[row])[0])
    torch.compiler.reset()
    compiled = torch.compile(rotary, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, coordinates=at), out)


@pytest.mark.parametrize("order", ["blocks", "interleaved"])
def test_text_is_turned_as_by_one_axis(order: str) -> None:
    rotary = mh.Rotary(16, axes=mh.Sections((4, 2, 2), order=order), scaling=mh.YaRN(4.0, 32))
    plain = mh.Rotary(16, scaling=mh.YaRN(4.0, 32))
    x = torch.randn(2, 1, 5, 16)
    for positions in (None, 7, torch.arange(5), torch.tensor([[-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]])):
        torch.testing.assert_close(rotary(x, positions), plain(x, positions))
    text = torch.arange(5)[:, None].expand(5, 3)
    torch.testing.assert_close(rotary(x, coordinates=text), plain(x))


def test_a_layer_reads_coordinates_and_caches_turned_keys() -> None:
    rotary = mh.Rotary(16, axes=mh.Sections((4, 2, 2)))
    layer = mh.MultiHeadAttention(32, 2, rotary=rotary, dtype=torch.float64)
    x = torch.randn(1, 6, 32, dtype=torch.float64)
    at = torch.tensor([[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [3, 3, 3]])
    whole, weights = layer.with_weights(x, mask=mh.Causal(), coordinates=at)
    assert weights.shape == (1, 2, 6, 6)
    assert (whole - layer(x, mask=mh.Causal())).abs().max() > 1e-6
    cache, parts = mh.GrowingCache(), []
    for piece in (slice(0, 3), slice(3, 5), slice(5, 6)):
        parts.append(layer(x[:, piece], mask=mh.Causal(), coordinates=at[piece], cache=cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mh.Rotary(8, axes=mh.Axial(3)), r"^pairs of features must divide among 3 axes; "),
        (lambda: mh.Axial(2, spectrum="both"), r"^spectrum must be 'own' or 'shared'; got "),
        (lambda: mh.Rotary(8, axes=mh.Sections((1, 2))), r"^sizes must add up to 4 pairs, half of"),
        (lambda: mh.Sections((1, 2), order="x"), r"^order must be 'blocks' or 'interleaved'; got "),
        (
            lambda: mh.Rotary(8, axes=2),
            r"^axes must be an object such as Axial\(2\); got axes=2\. ",
        ),
    ],
)
def test_axes_that_do_not_fit_are_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_coordinates_that_do_not_fit_are_refused() -> None:
    rotary, x = mh.Rotary(8, axes=mh.Axial(2)), torch.zeros(2, 1, 3, 8)
    with pytest.raises(PositionError, match=r"^coordinates must be given to a rotary with axes=Ax"):
        rotary(x)
    with pytest.raises(PositionError, match=r"^coordinates must go to a rotary with axes; got "):
        mh.Rotary(8)(x, coordinates=torch.zeros(3, 2))
    with pytest.raises(ShapeError, match=r"^coordinates must be \(length, axes\) = \(3, 2\) or "):
        rotary(x, coordinates=torch.zeros(2, 3))
    with pytest.raises(DTypeError, match=r"^coordinates must be real numbers; got .*bool\. "):
        rotary(x, coordinates=torch.zeros(3, 2).bool())
    with pytest.raises(DeviceError, match=r"^coordinates must be where x is, on cpu; got "):
        rotary(x, coordinates=torch.zeros(3, 2, device="meta"))
    layer = mh.MultiHeadAttention(16, 2)
    with pytest.raises(PositionError, match=r"^coordinates must go to a layer with a rotary; got "):
        layer(torch.zeros(1, 3, 16), coordinates=torch.zeros(3, 2))
    layer = mh.MultiHeadAttention(16, 2, rotary=mh.Rotary(8, axes=mh.Axial(2)))
    with pytest.raises(PositionError, match=r"^coordinates must go to a layer that attends to its"):
        layer(torch.zeros(1, 3, 16), torch.zeros(1, 3, 16), coordinates=torch.zeros(3, 2))
