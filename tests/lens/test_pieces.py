"""VIS-01: pieces of words become words, also where a tokenizer cuts inside of a character."""

import pytest
import torch

from manyheads.errors import OptionError, ShapeError
from manyheads.lens import draw_heatmap, merge_labels, merge_weights

SPANS = [(0, 3), (3, 6), (6, 7)]


def test_bytes_of_chinese_characters_become_characters():
    pieces = [bytes([byte]) for byte in "中文A".encode()]
    assert merge_labels(pieces, SPANS) == ["中", "文", "A"]


def test_bytes_that_are_no_text_are_spelled_out():
    assert merge_labels([b"\xe4", "b"], [(0, 1), (1, 2)]) == ["\\xe4", "b"]


def test_words_sum_over_keys_and_average_over_queries():
    index = torch.arange(1, 50, dtype=torch.float64)
    raw = ((7 * index**2 + 13 * 83 * index + 5 * 83) % 31 - 15) / 8
    weights = torch.tril(raw.reshape(7, 7).abs() + 1 / 8)
    weights = weights / weights.sum(-1, keepdim=True)
    merged = merge_weights(weights, SPANS, SPANS)
    expected = torch.tensor(
        [
            [1, 0, 0],
            [0.58262356, 0.41737644, 0],
            [0.465753425, 0.342465753, 0.191780822],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(merged, expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(merged.sum(-1), torch.ones(3, dtype=torch.float64))
    draw_heatmap(merged, ["中", "文", "A"], ["中", "文", "A"])


def test_heads_and_layers_stand_in_front():
    weights = torch.rand(2, 4, 3, 5).softmax(-1)
    merged = merge_weights(weights, [(0, 1), (1, 3)], [(0, 5)])
    assert merged.shape == (2, 4, 2, 1)
    torch.testing.assert_close(merged, torch.ones(2, 4, 2, 1))


def test_spans_that_leave_a_piece_out_or_take_it_twice_are_refused():
    with pytest.raises(
        OptionError, match=r"key_spans must cover each piece once; got piece 2 in 0"
    ):
        merge_weights(torch.eye(3), [(0, 3)], [(0, 2)])
    with pytest.raises(OptionError, match=r"query_spans must cover .* got piece 1 in 2 of them"):
        merge_weights(torch.eye(3), [(0, 2), (1, 3)], [(0, 3)])
    with pytest.raises(ShapeError, match=r"spans must lie within the 2 pieces.* got spans\[0\]"):
        merge_labels(["a", "b"], [(1, 1)])
    with pytest.raises(ShapeError, match=r"key_spans\[0\]=\(0, 4\)"):
        merge_weights(torch.eye(3), [(0, 3)], [(0, 4)])
