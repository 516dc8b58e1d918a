"""All heads as one page for a browser: a file that needs no network."""

import html
import json
import os
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyheads.files import PAGES, check_path, write_text
from manyheads.lens import explorer
from manyheads.lens.checks import check_text
from manyheads.lens.contents import ReadingLabels, Readings, gather
from manyheads.lens.numbers import ReadingNumbers
from manyheads.lens.packing import pack

MOST_BYTES = 5_000_000


def write_page(
    portraits: Readings,
    query_labels: ReadingLabels,
    key_labels: ReadingLabels | None = None,
    *,
    path: str | os.PathLike[str],
    title: str = "attention",
    numbers: ReadingNumbers | None = None,
) -> Path:
    """Write a page in which every head can be looked at, with numbers, at most 5 MB of it.

    Maps are exact where a call has at most 128 tokens and the page has room: each weight to a share
    of its row's greatest, 1 / 100,000 if that fits. Else a cell shows its greatest weight, and the
    page says so. To compare two texts or two models, give the portraits of
    each by a name; they are shown beside each other.

    Args:
        portraits: What `portray` kept, by layer; of several readings by their names.
        query_labels: A label for each query; by the name of a reading where there are several, by
            the name of a layer where layers read different tokens.
        key_labels: A label for each key, likewise; None takes those of the queries.
        path: The page, ending in .html.
        title: Stands above the page.
        numbers: Numbers of your own to sort the heads by: by their name (layers, heads), or
            (heads,) by the name of a layer, as `importance_by_gradient` gives them; by the name of
            a reading where there are several.

    Returns:
        The path.

    Raises:
        OptionError: If there is nothing to show, the path is no page's, numbers have no good name
            or are not finite, or not even the coarsest pictures fit.
        ShapeError: If the labels are not one a token, or the numbers not one a head.

    Example:
        >>> import tempfile, torch, manyheads as mh
        >>> model = mh.MultiHeadAttention(16, 2).eval()
        >>> with mh.probe.watch(model, each=mh.lens.portray) as found:
        ...     _ = model(torch.randn(1, 3, 16))
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_page(found, ["the", "cat", "sat"], path=folder / "heads.html").name
        'heads.html'
    """
    check_text("title", title)
    target = check_path(path, example="heads.html", endings=PAGES)
    contents = gather(portraits, query_labels, key_labels, numbers)
    page = _filled(title, {"texts": contents.texts, "readings": contents.readings}, b"")
    # Names, numbers and lists of rows take up to 4 kB a layer and 120 bytes a head, each number of
    # the user's 500 and 25 more; base64 writes three bytes as four.
    heads = sum(len(each.cells) for each in contents.portraits)
    own = len(contents.measures)
    told = (
        len(page.encode())
        + (4_000 + 500 * own) * len(contents.portraits)
        + (120 + 25 * own) * heads
    )
    headers, data = pack(contents.portraits, (MOST_BYTES - told) * 3 // 4)
    page = _filled(title, contents.told(title, headers), data)
    write_text(target, page)
    return target


def _filled(title: str, content: Mapping[str, Any], data: bytes) -> str:
    # Neither the end of a script nor a comment can stand in it.
    numbers = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(title),
        "style": explorer.read("page.css"),
        "content": numbers,
        "data": b64encode(data).decode(),
        "script": explorer.script("page"),
    }
    page = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], explorer.read("page.html"))
    # Half a character, as a shell hands on what is no text, is spelled as JSON does.
    return page.encode(errors="backslashreplace").decode()
