"""One head as a heatmap of characters."""

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.lens.labels import shorten, visible

SHADES = " ·░▒▓█"
MOST_ROWS, MOST_COLUMNS, LABEL = 40, 60, 14


def heatmap(
    weights: Tensor, query_labels: Sequence[str], key_labels: Sequence[str] | None = None
) -> str:
    """A row a query, a character a key, darker by the square root of the weight.

    With more than 40 queries or 60 keys a character shows the greatest weight of several.

    Args:
        weights: (q_len, kv_len), each 0 to 1.
        query_labels: What stands before each row.
        key_labels: What each row's strongest key is called, behind it; None leaves it out.

    Example:
        >>> print(heatmap(torch.eye(2), ["a", "b"]))
        a │█ │
        b │ █│
    """
    height, width = min(len(weights), MOST_ROWS), min(weights.shape[1], MOST_COLUMNS)
    pooled = torch.nn.functional.adaptive_max_pool2d(weights[None], (height, width))[0]
    shade = (pooled.clamp(0, 1).sqrt() * (len(SHADES) - 1)).round().long().tolist()
    rows = [row * len(weights) // height for row in range(height)]
    names = [shorten(visible(query_labels[row]), LABEL) for row in rows]
    room = max(len(name) for name in names)
    lines = []
    for row, name, cells in zip(rows, names, shade, strict=True):
        line = f"{name:>{room}} │{''.join(SHADES[cell] for cell in cells)}│"
        if key_labels is not None:
            best = int(weights[row].argmax())
            line += f" {float(weights[row, best]):.2f} {shorten(visible(key_labels[best]), LABEL)}"
        lines.append(line)
    return "\n".join(lines)
