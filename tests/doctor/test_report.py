"""A report as a page: evidence in pictures, nothing from the network, nothing unescaped."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from tests.museum.exhibit import LENGTH, ids, stream
from tests.museum.masks import KEEP, REAL, OneHead, Shifted, Wider, style
from tests.museum.scores import Unscaled
from tests.museum.styles import Fused, Matmul, Writer
from torch import Tensor, nn

from manyheads.doctor import Facts, Report, examine
from manyheads.errors import OptionError


class Elements(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def leak() -> Report:
    torch.manual_seed(0)
    return examine(style(Matmul, Shifted, causal=True)(), stream(), facts=Facts(causal=True))


def test_the_pictures_of_a_leak_mark_what_is_read_of_the_future(leak: Report) -> None:
    reads, *heads = leak.findings[0].pictures
    length = len(reads.cells)
    ahead = tuple((token, token + 1) for token in range(length - 1))
    assert reads.marks == ahead
    assert all(
        reads.cells[row][column] == 0 for row in range(length) for column in range(row + 2, length)
    )
    assert len(heads) == 4
    for head in heads:
        assert head.marks == ahead
        assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in head.cells)
    assert heads[0].title.startswith("(the model), head ")


def test_the_one_head_that_hides_padding_is_not_among_those_that_leak() -> None:
    report = examine(style(Matmul, OneHead)(), stream(), facts=REAL, padding_mask=KEEP)
    reads, *heads = report.findings[0].pictures
    assert report.codes[0] == "padding_leak"
    assert {row for row, _ in reads.marks}.isdisjoint(column for _, column in reads.marks)
    assert sorted(head.title for head in heads) == [f"(the model), head {n}" for n in (1, 2, 3)]


def test_a_window_is_drawn_with_what_lies_beyond_it() -> None:
    model = style(Matmul, Wider, causal=True)()
    report = examine(model, stream(), facts=Facts(causal=True, window=3))
    assert report.codes == ("window_off_by_one",)
    assert all(row - column == 3 for row, column in report.findings[0].pictures[0].marks)


def test_pictures_name_the_module_that_was_found() -> None:
    model = Writer(Fused(True), style(Matmul, Unscaled, causal=True)())
    report = examine(model, ids(), facts=Facts(causal=True))
    assert report.codes == ("scale_missing",)
    titles = [each.title for each in report.findings[0].pictures]
    assert titles == [f"layers.1.attention, head {head}" for head in range(4)]


def test_json_holds_the_pictures_too(leak: Report) -> None:
    picture = json.loads(leak.to_json())["findings"][0]["pictures"][0]
    assert picture["rows"] == "output" and picture["marks"][0] == [0, 1]


def test_the_page_needs_no_network_and_runs_no_script(leak: Report) -> None:
    page = Elements(leak.to_html())
    names = {tag for tag, _ in page.tags}
    assert names.isdisjoint({"script", "link", "iframe", "object"})
    loaded = [
        value for _, each in page.tags for name, value in each.items() if name in ("src", "href")
    ]
    assert len(loaded) == 5 and all(each.startswith("data:image/png") for each in loaded)
    policy = next(each["content"] for _, each in page.tags if "http-equiv" in each)
    assert "default-src 'none'" in policy
    assert "prefers-color-scheme: dark" in leak.to_html()


def test_the_page_says_what_the_report_says(leak: Report) -> None:
    page = Elements(leak.to_html())
    (finding,) = leak.findings
    told = (finding.code, finding.where, finding.explanation, finding.cure, finding.link)
    for text in (leak.headline, *told, f"{finding.number:.3g} {finding.unit}"):
        assert text in page.text
    for verdict in leak.verdicts:
        assert verdict.code in page.text and verdict.reason in page.text
    assert all(each["alt"] for tag, each in page.tags if tag == "img")


def test_a_healthy_page_has_no_finding() -> None:
    page = examine(Fused(), stream()).to_html()
    assert "<section" not in page
    assert "Fused: nothing found" in page


def test_names_of_a_model_are_no_markup(leak: Report) -> None:
    evil = "<img src=x onerror=alert(1)>"
    spoiled = replace(leak, model=evil, findings=(replace(leak.findings[0], where=evil),))
    page = spoiled.to_html()
    assert evil not in page and page.count("&lt;img src=x onerror=alert(1)&gt;") >= 2


def test_a_page_is_written_whole_or_not_at_all(leak: Report, tmp_path: Path) -> None:
    path = leak.write_html(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == leak.to_html()
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(OptionError, match=r"path must end in one of .html, .htm; got path="):
        leak.write_html(tmp_path / "report.txt")


def test_without_matplotlib_the_page_says_how_to_get_pictures(
    leak: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = leak.to_html()
    assert "<img" not in page and "future_leak" in page
    assert re.search(r"Pictures must have matplotlib; got none. Run: pip install", page)


class Peeks(nn.Module):
    """Leaks without any attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) + x.roll(-1, dims=1)


def test_what_makes_no_attention_has_the_picture_from_outside_alone() -> None:
    report = examine(Peeks(), stream(), facts=Facts(causal=True))
    assert [each.title for each in report.findings[0].pictures] == ["what each output reads"]


def test_an_argument_that_no_fact_speaks_of_is_named() -> None:
    class Masked(Fused):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            return super().forward(x, keep)

    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    report = examine(Masked(), stream(), keep)
    assert report.unread == ("keep",)
    assert str(report).endswith("Left as given, for no fact says what it is: keep.")
    assert report.to_dict()["unread"] == ["keep"]
    assert "<code>left as given</code></td><td><code>keep</code>" in report.to_html()
    known = examine(Masked(), stream(), keep, facts=Facts(padding="keep", real=True))
    assert known.unread == ()
    assert "Left as given" not in str(known)


def test_a_report_is_short_where_it_is_not_printed(leak: Report) -> None:
    assert repr(leak) == f"Report({leak.headline}: future_leak)"
    assert repr(examine(Fused(), stream())) == "Report(Fused: nothing found)"


def test_a_mask_that_the_example_does_not_give_is_named() -> None:
    class MayBeMasked(Fused):
        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return super().forward(x, attention_mask)

    report = examine(MayBeMasked(), stream())
    assert report.not_given == ("attention_mask",)
    assert str(report).endswith("Not examined, for the example gives none: attention_mask.")
    assert report.to_dict()["not_given"] == ["attention_mask"]
    assert "<code>not given</code></td><td><code>attention_mask</code>" in report.to_html()
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    assert examine(MayBeMasked(), stream(), mask).not_given == ()
