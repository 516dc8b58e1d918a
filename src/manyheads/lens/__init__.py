"""See what the heads do.

Matplotlib is loaded when the first picture is drawn, not before.
"""

from manyheads.lens.costs import draw_comparison
from manyheads.lens.flow import flow
from manyheads.lens.given import of_weights, uniform
from manyheads.lens.grid import draw_heads
from manyheads.lens.heatmap import draw_heatmap
from manyheads.lens.html import write_page
from manyheads.lens.importance import importance_by_ablation, importance_by_gradient
from manyheads.lens.lines import draw_lines
from manyheads.lens.masks import draw_masks
from manyheads.lens.matches import duplicate_token_score, induction_score
from manyheads.lens.norms import value_norms, weighted_norms
from manyheads.lens.notebook import explore
from manyheads.lens.patches import draw_patches
from manyheads.lens.pieces import merge_labels, merge_weights
from manyheads.lens.places import offset_score, previous_token_score, sink_mass
from manyheads.lens.portrait import Cutout, Portrait, portray
from manyheads.lens.profiles import draw_profiles
from manyheads.lens.redundancy import redundancy
from manyheads.lens.relations import offset_share, relation_share
from manyheads.lens.relevance import relevance
from manyheads.lens.rollout import rollout
from manyheads.lens.spread import coverage, effective_keys, mean_distance
from manyheads.lens.summary import HeadSummary, summarize_heads, summarize_layer
from manyheads.lens.without import without

__all__ = [
    "Cutout",
    "HeadSummary",
    "Portrait",
    "coverage",
    "draw_comparison",
    "draw_heads",
    "draw_heatmap",
    "draw_lines",
    "draw_masks",
    "draw_patches",
    "draw_profiles",
    "duplicate_token_score",
    "effective_keys",
    "explore",
    "flow",
    "importance_by_ablation",
    "importance_by_gradient",
    "induction_score",
    "mean_distance",
    "merge_labels",
    "merge_weights",
    "of_weights",
    "offset_score",
    "offset_share",
    "portray",
    "previous_token_score",
    "redundancy",
    "relation_share",
    "relevance",
    "rollout",
    "sink_mass",
    "summarize_heads",
    "summarize_layer",
    "uniform",
    "value_norms",
    "weighted_norms",
    "without",
    "write_page",
]
