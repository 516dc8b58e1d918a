"""What attention computes: one front door, one backend a file."""

from manyheads.functional.attention import (
    attention,
    attention_scores,
    attention_with_lse,
    attention_with_weights,
)
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.choose import BACKENDS, Auto, Explanation, explain
from manyheads.functional.compare import compare
from manyheads.functional.comparison import Comparison, Cost
from manyheads.functional.linear import FEATURES, linear_attention, linear_attention_with_state
from manyheads.functional.linformer import linformer_attention
from manyheads.functional.lsh import lsh_attention
from manyheads.functional.nystrom import nystrom_attention
from manyheads.functional.performer import (
    RandomFeatures,
    performer_attention,
    performer_attention_with_state,
)
from manyheads.functional.recurrent import recurrent_attention
from manyheads.functional.running_sums import RunningSums
from manyheads.functional.statistics import Statistics, statistics
from manyheads.functional.strongest import Peak, Top

__all__ = [
    "BACKENDS",
    "FEATURES",
    "Auto",
    "Backend",
    "Call",
    "Comparison",
    "Cost",
    "Explanation",
    "Peak",
    "RandomFeatures",
    "Refusal",
    "Result",
    "RunningSums",
    "Statistics",
    "Top",
    "attention",
    "attention_scores",
    "attention_with_lse",
    "attention_with_weights",
    "compare",
    "explain",
    "linear_attention",
    "linear_attention_with_state",
    "linformer_attention",
    "lsh_attention",
    "nystrom_attention",
    "performer_attention",
    "performer_attention_with_state",
    "recurrent_attention",
    "statistics",
]
