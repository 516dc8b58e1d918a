import numpy as np
import pytest
import torch

from manyheads.errors import OptionError, ShapeError
from manyheads.lens import draw_heads
from manyheads.lens.paper import new_figure


def maps_of(figure):
    return [axes for axes in figure.axes if axes.images]


def names_of(figure):
    return [text.get_text() for text in figure.texts]


def test_opposite_heads_are_shown_apart_and_never_averaged():
    """HEAD-01: their average is uniform and would hide both."""
    identity = torch.eye(2)
    figure = draw_heads({"layer": torch.stack([identity, identity.flip(0)])}, "ab", "ab")
    first, second = (axes.images[0].get_array() for axes in maps_of(figure))
    np.testing.assert_array_equal(first, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(second, [[0, 1], [1, 0]])


def test_each_layer_is_a_row_and_each_head_a_column():
    weights = {"encoder 0": torch.zeros(3, 2, 4), "encoder 1": torch.zeros(3, 2, 4)}
    figure = draw_heads(weights, "ab", "wxyz", title="All of it")
    cells = [axes.get_position() for axes in maps_of(figure)]
    assert len(cells) == 6
    assert cells[0].y0 > cells[3].y1
    assert cells[0].x1 < cells[1].x0 < cells[2].x0
    assert cells[0].x0 == cells[3].x0
    heads = ["head 0", "head 1", "head 2"]
    assert sorted(names_of(figure)) == sorted(["All of it", "encoder 0", "encoder 1", *heads * 2])


def test_labels_stand_at_the_outer_maps_only():
    figure = draw_heads({"a": torch.zeros(2, 2, 2), "b": torch.zeros(2, 2, 2)}, "ab", "cd")
    rows = [len(axes.get_yticklabels()) for axes in maps_of(figure)]
    columns = [len(axes.get_xticklabels()) for axes in maps_of(figure)]
    assert rows == [2, 0, 2, 0]
    assert columns == [0, 0, 2, 2]


def test_layers_may_have_different_numbers_of_heads():
    figure = draw_heads({"a": torch.zeros(3, 2, 2), "b": torch.zeros(1, 2, 2)}, "ab", "cd")
    assert len(maps_of(figure)) == 4
    # The keys' labels stand below the lowest map of each column.
    assert [len(axes.get_xticklabels()) for axes in maps_of(figure)] == [0, 2, 2, 2]


def test_layers_that_read_different_tokens_share_a_page():
    source, target = list("2 may 2019"), list("2019-05-02")
    weights = {
        "encoder.0": torch.rand(2, 10, 10),
        "decoder.0.self": torch.rand(2, 4, 4),
        "decoder.0.cross": torch.rand(2, 4, 10),
        "decoder.1.cross": torch.rand(2, 4, 10),
    }
    queries = {"encoder.0": source} | dict.fromkeys([*weights][1:], target[:4])
    keys = dict.fromkeys(weights, source) | {"decoder.0.self": target[:4]}
    figure = draw_heads(weights, queries, keys)
    cells = maps_of(figure)
    assert [len(axes.get_yticklabels()) for axes in cells] == [10, 0, 4, 0, 4, 0, 4, 0]
    # The two cross-attentions share one row of keys.
    assert [len(axes.get_xticklabels()) for axes in cells] == [10, 10, 4, 4, 0, 0, 10, 10]
    bottoms = [axes.get_tightbbox().y0 for axes in cells[::2]]
    tops = [axes.get_tightbbox().y1 for axes in cells[::2]]
    assert all(bottom > top for bottom, top in zip(bottoms, tops[1:], strict=False))


def test_labels_by_layer_must_name_every_layer():
    weights = {"a": torch.zeros(1, 2, 2), "b": torch.zeros(1, 2, 2)}
    with pytest.raises(
        ShapeError, match=r"query_labels .* got query_labels of \['a'\], none of 'b'"
    ):
        draw_heads(weights, {"a": "xy"}, "xy")


def test_heads_are_chosen_and_ordered():
    weights = torch.rand(4, 2, 2)
    figure = draw_heads({"": weights}, "ab", "ab", heads=[3, 1])
    shown = [axes.images[0].get_array() for axes in maps_of(figure)]
    np.testing.assert_array_equal(shown[0], weights[3])
    np.testing.assert_array_equal(shown[1], weights[1])
    assert "head 3" in names_of(figure)


def test_a_head_can_be_named_and_marked_by_itself():
    figure = draw_heads(
        {"cross": torch.rand(2, 3, 3)},
        "abc",
        "abc",
        names={("cross", 1): "year 0.97"},
        marks={("cross", 1): [(0, 0), (1, 1)]},
    )
    assert "year 0.97" in names_of(figure)
    assert "head 1" not in names_of(figure)
    assert [len(axes.collections) for axes in maps_of(figure)] == [0, 1]


def test_layers_named_with_math_signs_and_scripts_are_drawn_literally(tmp_path):
    weights = {"$decoder_1": torch.zeros(1, 1, 1), "解码器": torch.zeros(1, 1, 1)}
    figure = draw_heads(weights, ["a"], ["b"], path=tmp_path / "heads.png")
    assert {"$decoder_1", "解码器"} <= set(names_of(figure))


def test_a_page_of_very_many_heads_stays_within_what_can_be_drawn():
    page = new_figure(400, 3)
    assert max(page.get_size_inches()) * page.dpi <= 30_000
    assert new_figure(10, 3).dpi == 200


def test_what_it_was_given_is_left_alone():
    weights = torch.rand(2, 3, 3)
    before = weights.clone()
    draw_heads({"a": weights}, "abc", "abc", limits="own")
    assert torch.equal(weights, before)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "weights must hold at least one layer"),
        (torch.eye(2)[None], r'weights must map a layer.* got weights=Tensor. Write {"layer 0"'),
        ({"a": torch.eye(2)}, r"must be \(heads, q_len, kv_len\); got shape \(2, 2\) in layer 'a'"),
        ({"a": torch.zeros(1, 1, 2, 2)}, r"got shape \(1, 1, 2, 2\).*Choose one sample, weights"),
        ({"a": torch.zeros(0, 2, 2)}, "must have heads, queries and keys"),
        (
            {"a": torch.zeros(1, 2, 2), "b": torch.zeros(1, 2, 3)},
            "key_labels must be as many as kv_len=3 in layer 'b'; got 2.*take a dict by layer",
        ),
        ({"a": torch.zeros(1, 2, 3)}, "key_labels must be as many as kv_len=3 in layer 'a'; got 2"),
    ],
)
def test_what_is_no_set_of_maps_is_refused(weights, message):
    with pytest.raises(ShapeError, match=message):
        draw_heads(weights, "ab", "ab")


def test_heads_that_are_not_there_are_refused():
    weights = {"a": torch.zeros(2, 2, 2)}
    for heads in ([2], [-1], []):
        with pytest.raises(OptionError, match="heads must be numbers from 0 to 1; got heads="):
            draw_heads(weights, "ab", "ab", heads=heads)
    with pytest.raises(OptionError, match=r"names must be of \(layer, head\) .* got \('b', 0\)"):
        draw_heads(weights, "ab", "ab", names={("b", 0): "x"})
    with pytest.raises(OptionError, match=r"marks must be of .* got \('a', 5\). Drawn are"):
        draw_heads(weights, "ab", "ab", marks={("a", 5): []})


def test_nan_is_reported_with_its_place():
    weights = torch.zeros(2, 2, 2)
    weights[1, 0, 0] = torch.nan
    with pytest.raises(OptionError, match="got 1 of NaN or inf in layer 'a' head 1"):
        draw_heads({"a": weights}, "ab", "ab")
