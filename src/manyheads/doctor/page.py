"""A report as one page for a browser: a file that needs no network."""

import html
import io
import re
from base64 import b64encode
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from manyheads.doctor.check import Finding
from manyheads.doctor.picture import Picture
from manyheads.errors import MissingExtraError
from manyheads.lens.heatmap import paint
from manyheads.lens.maps import Map
from manyheads.lens.paper import new_figure, plain_settings

if TYPE_CHECKING:
    from manyheads.doctor.report import Report

SIDE, LABELS = 2.4, 8
"""Inches of a picture each way; numbers along a side of it, about."""


def page_of(report: "Report") -> str:
    """The whole page, as text."""
    folder = files("manyheads.doctor")
    rest = {"left as given": report.unread, "not given": report.not_given}
    facts = report.known | {name: ", ".join(each) for name, each in rest.items() if each}
    parts = {
        "title": html.escape(report.headline),
        "style": (folder / "page.css").read_text("utf-8"),
        "state": "healthy" if report.healthy else "ill",
        "findings": "\n".join(map(_finding, report.findings)),
        "facts": _table(
            (f"<code>{_text(name)}</code>", f"<code>{_text(value)}</code>")
            for name, value in facts.items()
        ),
        "verdicts": _table(
            (f"<code>{_text(each.code)}</code>", _text(each.says), _text(each.reason))
            for each in report.verdicts
        ),
    }
    page = (folder / "page.html").read_text("utf-8")
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], page)


def _finding(finding: Finding) -> str:
    told = {
        "measured": f"{finding.number:.3g} {finding.unit}",
        "healthy": finding.expected,
        "means": finding.explanation,
        "cure": finding.cure,
        "shows as": ", ".join(finding.symptoms),
        "more": finding.link,
    }
    lines = [f"<dt>{name}</dt><dd>{_text(text)}</dd>" for name, text in told.items() if text]
    return (
        f'<section class="{finding.severity}" id="{_text(finding.code)}">\n'
        f"<h2><b>{finding.severity}</b> {_text(finding.code)}</h2>\n"
        f'<p class="where">{_text(finding.where)}</p>\n'
        f"<dl>{''.join(lines)}</dl>\n{_pictures(finding.pictures)}</section>"
    )


def _pictures(pictures: tuple[Picture, ...]) -> str:
    try:
        figures = "".join(map(_figure, pictures))
    except MissingExtraError as missing:
        return f'<p class="missing">{_text(missing)}</p>\n'
    return f'<div class="pictures">{figures}</div>\n' if figures else ""


def _figure(picture: Picture) -> str:
    data = b64encode(_png(picture)).decode()
    marked = f"; {len(picture.marks)} that should not be" if picture.marks else ""
    words = f"{picture.title}: {picture.rows}s by {picture.columns}s{marked}"
    outlined = "; outlined: what should not be" if picture.marks else ""
    return (
        f'<figure><img alt="{_text(words)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{_text(picture.title)}<small>{_text(picture.scale)}{outlined}</small>"
        f"</figcaption></figure>"
    )


def _png(picture: Picture) -> bytes:
    cells = np.array(picture.cells, dtype=np.float32)
    with plain_settings():
        figure = new_figure(SIDE, SIDE)
        axes = figure.add_axes((0.15, 0.02, 0.83, 0.83))
        paint(axes, Map("", 0, cells, marks=frozenset(picture.marks)), "unit")
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        for axis, name, count in (
            (axes.yaxis, picture.rows, cells.shape[0]),
            (axes.xaxis, picture.columns, cells.shape[1]),
        ):
            axis.set_label_text(name, fontsize=7)
            axis.set_ticks(range(0, count, -(-count // LABELS)))
            axis.set_tick_params(labelsize=6, length=0, pad=1)
        written = io.BytesIO()
        figure.savefig(written, format="png")
    return written.getvalue()


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return "".join(f"<tr>{row}</tr>" for row in cells)


def _text(value: object) -> str:
    return html.escape(str(value))
