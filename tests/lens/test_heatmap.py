import subprocess
import sys

import numpy as np
import pytest
import torch

from manyheads.errors import MissingExtraError, OptionError, ShapeError
from manyheads.lens import draw_heatmap
from manyheads.lens.heatmap import borders, pool
from manyheads.lens.paper import plain_settings

ODD = ["$", "$x_1$", "a$b$c", "\\frac", "<s>", "_", "^", "", " ", "\n"]
SHOWN = ["$", "$x_1$", "a$b$c", "\\frac", "<s>", "_", "^", "∅", "␣", "↵"]


def rows_of(figure):
    return [text.get_text() for text in figure.axes[0].get_yticklabels()]


def columns_of(figure):
    return [text.get_text() for text in figure.axes[0].get_xticklabels()]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_tokens_of_signs_are_drawn_literally_in_every_format(tmp_path, ending):
    path = tmp_path / f"map.{ending}"
    figure = draw_heatmap(torch.eye(10), ODD, ODD, title="$a_1$ and $", path=path)
    assert rows_of(figure) == columns_of(figure) == SHOWN
    assert path.stat().st_size > 1000
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_map_holds_the_weights_as_they_are():
    weights = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    figure = draw_heatmap(weights, list("abc"), list("vwxyz"))
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), weights.detach().float().numpy())
    assert image.get_clim() == (0.0, 1.0)


def test_its_own_limits_are_written_at_the_scale():
    figure = draw_heatmap(torch.tensor([[0.125, 0.25]]), ["q"], ["a", "b"], limits="own")
    assert figure.axes[0].images[0].get_clim() == (0.125, 0.25)
    assert [text.get_text() for text in figure.axes[1].get_yticklabels()] == ["0.12", "0.25"]


def test_a_map_of_one_value_is_drawn_too():
    draw_heatmap(torch.full((2, 2), 0.5), ["a", "b"], ["a", "b"], limits="own")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_are_drawn_though_rounding_passes_1(dtype):
    draw_heatmap(torch.tensor([[1.004, 0.0]], dtype=dtype), ["q"], ["a", "b"])


def test_up_to_60_tokens_each_has_its_label_and_more_are_thinned_out():
    some, many = [str(n) for n in range(60)], [str(n) for n in range(200)]
    assert rows_of(draw_heatmap(torch.eye(60), some, some)) == some
    shown = columns_of(draw_heatmap(torch.eye(200), many, many))
    assert 40 <= len(shown) <= 100
    step = int(shown[1])
    assert shown == many[::step]


@pytest.mark.parametrize("length", [1, 33, 60, 61, 500])
def test_labels_have_room_however_many_tokens_there_are(length):
    figure = draw_heatmap(torch.zeros(length, length), ["Wörter"] * length, ["x"] * length)
    axes = figure.axes[0]
    dots_a_token = axes.get_window_extent().height / length
    ticks = axes.get_yticks()
    stride = dots_a_token * (ticks[1] - ticks[0] if length > 1 else 1)
    assert stride >= 1.2 * axes.get_yticklabels()[0].get_fontsize() * figure.dpi / 72


def test_everything_lies_within_the_page():
    long = ["a very long token indeed " * 3, "注意力" * 20, "x"]
    figure = draw_heatmap(torch.eye(3), long, long, title="A title that is long " * 5)
    figure.canvas.draw()
    page = figure.bbox
    box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert box.x0 >= page.x0 and box.y0 >= page.y0
    assert box.x1 <= page.x1 and box.y1 <= page.y1


def test_with_more_tokens_than_dots_a_sharp_head_stays_sharp():
    length = 4000
    tokens = [""] * length
    figure = draw_heatmap(torch.eye(length), tokens, tokens)
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape[0] < length
    assert (np.diagonal(shown) == 1).all()
    assert "largest of 3 x 3" in figure.axes[1].get_ylabel()


def test_pooling_keeps_the_largest_of_each_block_and_the_rest_at_the_end():
    weights = np.array([[0.1, 0.9, 0.3], [0.2, 0.4, 0.5], [0.6, 0.0, 0.7]], dtype=np.float32)
    expected = np.array([[0.9, 0.5], [0.6, 0.7]], dtype=np.float32)
    np.testing.assert_array_equal(pool(weights, 2), expected)


def test_the_outline_of_marks_runs_around_them_and_not_between():
    square = frozenset({(0, 0), (0, 1), (1, 0), (1, 1)})
    assert len(borders(square)) == 4
    assert [(-0.5, -0.5), (1.5, -0.5)] in borders(square)
    diagonal = frozenset({(0, 0), (1, 1)})
    # The two lines in the middle belong to both cells and are drawn once, in full.
    assert [(-0.5, 0.5), (1.5, 0.5)] in borders(diagonal)
    assert borders(frozenset()) == []


def test_marks_are_drawn_where_they_are():
    figure = draw_heatmap(torch.eye(3), list("abc"), list("abc"), marks=[(1, 2)])
    (lines,) = figure.axes[0].collections
    corners = {tuple(point) for path in lines.get_paths() for point in path.vertices}
    assert corners == {(1.5, 0.5), (2.5, 0.5), (1.5, 1.5), (2.5, 1.5)}


def test_no_window_opens_and_pyplot_is_not_loaded():
    code = (
        "import sys, torch; from manyheads.lens import draw_heatmap; "
        "assert 'matplotlib' not in sys.modules; "
        "draw_heatmap(torch.eye(2), 'ab', 'ab'); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("weights", "kind", "message"),
    [
        (torch.eye(2)[None], ShapeError, r"weights must be \(q_len, kv_len\); got shape \(1, 2, 2"),
        (torch.zeros(2, 0), ShapeError, "weights must have heads, queries and keys; got shape"),
        (torch.eye(2) / 0, OptionError, "weights must be finite; got 4 of NaN or inf in layer ''"),
        (torch.eye(2) * 2, OptionError, "weights must lie between 0 and 1; got 0 to 2 in"),
        (torch.eye(3), ShapeError, "query_labels must be as many as q_len=3 in layer ''; got 2"),
    ],
)
def test_what_is_no_map_is_refused(weights, kind, message):
    with pytest.raises(kind, match=message):
        draw_heatmap(weights, ["a", "b"], ["a", "b"])


def test_options_that_cannot_be_are_refused(tmp_path):
    labels = ["a", "b"]
    with pytest.raises(OptionError, match=r"limits must be 'unit' .* got limits='auto'"):
        draw_heatmap(torch.eye(2), labels, labels, limits="auto")
    with pytest.raises(OptionError, match=r"marks must be \(query, key\) within .* got \(0, 2\)"):
        draw_heatmap(torch.eye(2), labels, labels, marks=[(0, 2)])
    with pytest.raises(OptionError, match=r"path must end in one of .*png.* got path='.*map.doc'"):
        draw_heatmap(torch.eye(2), labels, labels, path=tmp_path / "map.doc")
    with pytest.raises(OptionError, match="path must lie in a folder that exists; got path="):
        draw_heatmap(torch.eye(2), labels, labels, path=tmp_path / "none" / "map.png")


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "map.png"
    path.write_bytes(b"old")
    from matplotlib.figure import Figure

    def full_disk(self, where):
        where.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(OSError, match="no space left"):
        draw_heatmap(torch.eye(2), "ab", "ab", path=path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with (
        pytest.raises(MissingExtraError, match=r'pip install "matplotlib'),
        plain_settings(),
    ):
        pass


def test_a_matplotlib_that_cannot_shape_arabic_is_refused(monkeypatch):
    import matplotlib

    monkeypatch.setattr(matplotlib, "__version__", "3.10.8")
    with pytest.raises(MissingExtraError, match=r"matplotlib 3.11 or newer.* got 3.10.8"):
        draw_heatmap(torch.eye(2), "ab", "ab")
