"""All heads as one page for a browser: a file that needs no network."""

import html
import json
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyheads.errors import OptionError
from manyheads.lens.labels import visible
from manyheads.lens.maps import Labels, labels_of
from manyheads.lens.packing import pack
from manyheads.lens.portrait import Portrait

MOST_BYTES = 5_000_000


def write_page(
    portraits: Sequence[Portrait],
    query_labels: Labels,
    key_labels: Labels | None = None,
    *,
    path: str | os.PathLike[str],
    title: str = "attention",
) -> Path:
    """Write a page in which every head can be looked at, with numbers, at most 5 MB of it.

    Maps are exact where a call has at most 128 tokens and the page has room; else a cell shows its
    greatest weight, and the page says so.

    Args:
        portraits: What `portray` kept, by layer.
        query_labels: A label for each query; by the name of a layer where layers read different
            tokens.
        key_labels: A label for each key, likewise; None takes those of the queries.
        path: The page, ending in .html.
        title: Stands above the page.

    Returns:
        The path.

    Raises:
        OptionError: If there is nothing to show, the path is no page's, or not even the coarsest
            pictures fit.
        ShapeError: If the labels are not one a token.

    Example:
        >>> import tempfile, torch, manyheads as mh
        >>> model = mh.MultiHeadAttention(16, 2).eval()
        >>> with mh.probe.watch(model, each=mh.lens.portray) as found:
        ...     _ = model(torch.randn(1, 3, 16))
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_page(found, ["the", "cat", "sat"], path=folder / "heads.html").name
        'heads.html'
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm") or not target.parent.is_dir():
        raise OptionError(
            f"path must end in .html and lie in a folder that exists; got path={str(target)!r}. "
            f"Write heads.html, for one."
        )
    if not portraits:
        raise OptionError("portraits must hold at least one layer; got none. Watch a model first.")
    texts: list[list[str]] = []
    sides = [
        _sides(each, query_labels, query_labels if key_labels is None else key_labels, texts)
        for each in portraits
    ]
    page = _filled(title, {"texts": texts, "layers": []}, b"")
    # Names, numbers and lists of rows take up to 4 kB a layer and 120 bytes a head; base64 writes
    # three bytes as four.
    heads = sum(len(each.cells) for each in portraits)
    told = len(page.encode()) + 4_000 * len(portraits) + 120 * heads
    headers, data = pack(portraits, (MOST_BYTES - told) * 3 // 4)
    layers = [{**header, **side} for header, side in zip(headers, sides, strict=True)]
    page = _filled(title, {"texts": texts, "layers": layers}, data)
    half_written = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        half_written.write_text(page, encoding="utf-8")
        half_written.replace(target)
    finally:
        half_written.unlink(missing_ok=True)
    return target


def _sides(
    portrait: Portrait, queries: Labels, keys: Labels, texts: list[list[str]]
) -> dict[str, int]:
    """Which texts a layer's queries and keys are; each text is written once."""
    found = {}
    q_len, kv_len = portrait.lengths
    for name, one, labels, length, axis in (
        ("queries", "query", queries, q_len, "q_len"),
        ("keys", "key", keys, kv_len, "kv_len"),
    ):
        own = labels_of(f"{one}_labels", labels, portrait.layer, length, axis)
        shown = [visible(token) for token in own]
        if shown not in texts:
            texts.append(shown)
        found[name] = texts.index(shown)
    return found


def _filled(title: str, content: Mapping[str, Any], data: bytes) -> str:
    folder = files("manyheads.lens") / "explorer"
    read = {
        name: (folder / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    }
    # Neither the end of a script nor a comment can stand in it.
    numbers = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(title),
        "style": read["page.css"],
        "content": numbers,
        "data": b64encode(data).decode(),
        "script": read["page.js"],
    }
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], read["page.html"])
