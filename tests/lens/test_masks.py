import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import OptionError, ShapeError
from manyheads.lens import draw_masks
from manyheads.masks.picture import pool


def image(axes) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def test_a_cell_is_dark_where_a_query_sees_a_key():
    seen = (mh.Causal() & mh.Window(3)).dense(5, 7)[0, 0]
    (axes,) = draw_masks({"window": seen}).axes
    assert image(axes).tolist() == seen.float().tolist()
    assert axes.get_ylabel() == "query" and axes.get_xlabel() == "key"
    assert axes.get_xlim() == (-0.5, 6.5) and axes.get_ylim() == (4.5, -0.5)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_every_mask_has_its_name_and_the_page_a_title(tmp_path, ending):
    path = tmp_path / f"masks.{ending}"
    seen = {name: mh.Causal().dense(4)[0, 0] for name in ("one", "two $x_1$", "three")}
    figure = draw_masks(seen, title="All of them", columns=2, path=path)
    assert path.stat().st_size > 1000
    texts = [text.get_text() for text in figure.texts]
    assert texts == ["All of them", "one", "two $x_1$", "three"]


@pytest.mark.parametrize("title", ["", "Causal() & (Window(8) | Global(0))", "very " * 40])
@pytest.mark.parametrize("lengths", [(3,), (3, 12, 100, 4000)])
def test_texts_do_not_run_into_each_other_or_off_the_page(lengths, title):
    seen = {f"a name that is too long for {n}": mh.Causal().dense(n)[0, 0] for n in lengths}
    figure = draw_masks(seen, title=title, columns=2)
    drawn = [text for text in figure.texts if text.get_text()]
    for axes in figure.axes:
        drawn += [*axes.get_xticklabels(), *axes.get_yticklabels()]
        drawn += [axes.xaxis.label, axes.yaxis.label]
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in drawn if text.get_text()]
    page = figure.bbox
    for place, box in enumerate(boxes):
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_where_tokens_are_many_a_cell_is_as_dark_as_its_pairs_are_seen_and_none_fades():
    seen = torch.zeros(1024, 1024, dtype=torch.bool)
    seen[:4, :2] = True
    seen[900, 900] = True
    (axes,) = draw_masks({"": seen}).axes
    shades = image(axes)
    assert shades.shape == (256, 256)
    assert shades[0, 0] == pytest.approx(0.3 + 0.7 * 0.5)
    assert shades[225, 225] > 0.3 and (shades > 0).sum() == 2


def test_pooling_counts_only_pairs_that_are_there():
    seen = torch.ones(5, 7, dtype=torch.bool)
    seen[4, 6] = False
    assert pool(seen, 4).tolist() == [[1, 1], [1, pytest.approx(2 / 3)]]
    assert torch.equal(pool(seen, 1), seen.float())


@pytest.mark.parametrize(
    ("draw", "kind", "message"),
    [
        (lambda: draw_masks({}), OptionError, "at least one mask; got none"),
        (
            lambda: draw_masks({"a": mh.Causal().dense(3)}),
            ShapeError,
            r"bool \(q_len, kv_len\); got torch.bool of shape \(1, 1, 3, 3\) for 'a'",
        ),
        (lambda: draw_masks({"a": torch.rand(3, 3)}), ShapeError, "got torch.float32"),
        (lambda: draw_masks({"a": torch.ones(0, 3).bool()}), ShapeError, r"shape \(0, 3\)"),
        (
            lambda: draw_masks({"a": torch.ones(3, 3).bool()}, columns=0),
            OptionError,
            "columns must be an int of at least 1; got columns=0",
        ),
        (
            lambda: draw_masks({"a": torch.ones(3, 3).bool()}, path="mask.doc"),
            OptionError,
            "path must end in one of",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, kind, message):
    with pytest.raises(kind, match=message):
        draw()
