"""All heads in a notebook: the page's explorer, which can be asked for any exact weight."""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from manyheads.errors import ManyheadsError, MissingExtraError
from manyheads.extras import install_line
from manyheads.lens import explorer
from manyheads.lens.checks import check_text
from manyheads.lens.contents import ReadingLabels, Readings, gather
from manyheads.lens.numbers import ReadingNumbers
from manyheads.lens.packing import pack
from manyheads.lens.portrait import Portrait

if TYPE_CHECKING:
    from anywidget import AnyWidget


def explore(
    portraits: Readings,
    query_labels: ReadingLabels,
    key_labels: ReadingLabels | None = None,
    *,
    title: str = "attention",
    numbers: ReadingNumbers | None = None,
) -> "AnyWidget":
    """Show in a notebook what `write_page` writes, with any exact weight on demand.

    Where a text is longer than 128 tokens, zooming into a map or locking a query computes the exact
    weights there, if they were portrayed with ``live=True``.

    Args:
        portraits: As `write_page` takes them.
        query_labels: Likewise.
        key_labels: Likewise.
        title: Stands above.
        numbers: Likewise.

    Returns:
        A widget. Its ``state`` is what a page has in its address: which head, query and view.

    Raises:
        MissingExtraError: If anywidget is not installed.
        OptionError: If there is nothing to show, or numbers have no good name or are not finite.
        ShapeError: If the labels are not one a token, or the numbers not one a head.

    Example:
        >>> import torch, manyheads as mh
        >>> model = mh.MultiHeadAttention(16, 2).eval()
        >>> with mh.probe.watch(model) as calls:
        ...     _ = model(torch.randn(1, 300, 16))
        >>> found = [mh.lens.portray(call, live=True) for call in calls]
        >>> mh.lens.explore(found, [str(i) for i in range(300)]).state
        ''
    """
    check_text("title", title)
    widget = _widget()
    contents = gather(portraits, query_labels, key_labels, numbers)
    headers, data = pack(contents.portraits)
    live = [
        {**header, "live": portrait.call is not None}
        for header, portrait in zip(headers, contents.portraits, strict=True)
    ]
    shown = widget(content=contents.told(title, live), data=data)
    heads = [(each, head) for each in contents.portraits for head in range(len(each.cells))]
    shown.on_msg(partial(_answer, heads))
    return shown


@cache
def _widget() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingExtraError(
            f"explore must have anywidget to show heads in a notebook; got none. Run: "
            f"{install_line('notebook')}, or write a page with write_page."
        ) from error

    class Explorer(anywidget.AnyWidget):
        """The explorer as a widget."""

        _esm = explorer.script("widget")
        _css = explorer.read("page.css")
        content = traitlets.Dict().tag(sync=True)
        data = traitlets.Bytes().tag(sync=True)
        state = traitlets.Unicode("").tag(sync=True)

    return Explorer


def _answer(
    heads: list[tuple[Portrait, int]], widget: Any, asked: dict[str, Any], _: list[bytes]
) -> None:
    """Send the exact weights of a window that the explorer asked for."""
    try:
        portrait, head = heads[asked["place"]]
        if portrait.call is None:
            raise LookupError(f"{portrait.layer} was portrayed without live=True")
        rows, keys = (slice(*asked[side]) for side in ("rows", "keys"))
        weights = portrait.call.weights(rows, keys)[0, head].float().cpu().contiguous()
    except (ManyheadsError, LookupError, TypeError) as error:
        widget.send({"id": asked.get("id"), "error": str(error)})
    else:
        widget.send({"id": asked["id"]}, [weights.numpy().tobytes()])
