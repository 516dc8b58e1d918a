"""See what the heads do.

Today: the pictures. Matplotlib is loaded when the first one is drawn, not before.
"""

from manyheads.lens.costs import draw_comparison
from manyheads.lens.grid import draw_heads
from manyheads.lens.heatmap import draw_heatmap
from manyheads.lens.masks import draw_masks
from manyheads.lens.pieces import merge_labels, merge_weights
from manyheads.lens.summary import HeadSummary, summarize_heads

__all__ = [
    "HeadSummary",
    "draw_comparison",
    "draw_heads",
    "draw_heatmap",
    "draw_masks",
    "merge_labels",
    "merge_weights",
    "summarize_heads",
]
