"""Profiles by layer, lines between tokens, and light on patches."""

import numpy as np
import pytest
import torch

from manyheads.errors import OptionError, ShapeError
from manyheads.lens import draw_lines, draw_patches, draw_profiles, summarize_heads
from manyheads.lens.patches import lit_by

SHARP, FLAT = torch.eye(4), torch.full((4, 4), 0.25)
TOKENS = ["$x_1$", "<s>", "注意力", ""]


def test_a_profile_has_a_dot_a_head_and_a_line_through_the_means(tmp_path):
    heads = summarize_heads({"a": torch.stack([SHARP, FLAT]), "b": torch.stack([FLAT, FLAT])})
    figure = draw_profiles(heads, title="$profile$", path=tmp_path / "profile.png")
    spread, distance = figure.axes
    first, second, mean = spread.get_lines()
    assert first.get_ydata().tolist() == pytest.approx([1, 4])
    assert second.get_ydata().tolist() == pytest.approx([4, 4])
    assert list(mean.get_ydata()) == pytest.approx([2.5, 4])
    # Evenly over four tokens: (0 + 1 + 2 + 3 + 1 + 0 + 1 + 2 + ...) / 16.
    assert distance.get_lines()[1].get_ydata().tolist() == pytest.approx([1.25, 1.25])
    assert (tmp_path / "profile.png").stat().st_size > 3000


def test_a_line_joins_each_query_with_each_key_it_reads_as_strong_as_its_weight(tmp_path):
    weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.49, 0.01, 0], [0, 0, 0, 0], [0, 0, 0.2, 0.8]])
    figure = draw_lines(weights, TOKENS, TOKENS, title="<b>", path=tmp_path / "lines.svg")
    (lines,) = figure.axes[0].collections
    ends = [(segment[0][1], segment[1][1]) for segment in lines.get_segments()]
    assert ends == [(0, 0), (1, 0), (1, 1), (3, 2), (3, 3)]
    assert lines.get_colors()[:, 3] == pytest.approx([1, 0.5, 0.49, 0.2, 0.8])
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == 2 * ["$x_1$", "<s>", "注意力", "∅"] or "U+6CE8" in written[2]


def test_patches_are_lit_by_their_weight_and_keep_their_place(tmp_path):
    picture = np.ones((4, 6, 3))
    lit = lit_by(picture, np.array([[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]))
    assert lit[:2, 4:] == pytest.approx(1.0)
    assert lit[:2, 2:4] == pytest.approx(0.56)
    assert lit[2:] == pytest.approx(0.12)
    image = torch.rand(1, 8, 12)
    figure = draw_patches(image, torch.rand(2, 6), (2, 3), titles=("head 0", "head 1"),
                          path=tmp_path / "patches.png")  # fmt: skip
    assert [axes.images[0].get_array().shape for axes in figure.axes] == [(8, 12)] * 3
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), image[0])


def test_what_cannot_be_drawn_is_refused():
    heads = summarize_heads({"a": SHARP[None]})
    with pytest.raises(OptionError, match="heads must be summaries"):
        draw_profiles([])
    with pytest.raises(OptionError, match="measures must be known of all heads; got 'induction'"):
        draw_profiles(heads, ["induction"])
    with pytest.raises(ShapeError, match="at most 200 tokens"):
        draw_lines(torch.eye(201), ["a"] * 201, ["a"] * 201)
    with pytest.raises(ShapeError, match="key_labels must be as many as kv_len=4"):
        draw_lines(SHARP, TOKENS, TOKENS[:3])
    with pytest.raises(OptionError, match="weights must lie between 0 and 1"):
        draw_lines(3 * SHARP, TOKENS, TOKENS)
    with pytest.raises(OptionError, match="least must be from 0 to 1"):
        draw_lines(SHARP, TOKENS, TOKENS, least=2)
    image = torch.rand(3, 4, 4)
    with pytest.raises(ShapeError, match="image must be"):
        draw_patches(image[:2], torch.rand(1, 4), (2, 2))
    with pytest.raises(ShapeError, match="Leave the class token out"):
        draw_patches(image, torch.rand(1, 5), (2, 2))
    with pytest.raises(OptionError, match="weights must be finite and not below 0"):
        draw_patches(image, -torch.ones(1, 4), (2, 2))
    with pytest.raises(OptionError, match="titles must be as many as the maps"):
        draw_patches(image, torch.rand(1, 4), (2, 2), titles=("a", "b"))
