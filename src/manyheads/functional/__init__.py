"""What attention computes: one front door, one backend a file."""

from manyheads.functional.attention import (
    attention,
    attention_scores,
    attention_with_lse,
    attention_with_weights,
)
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.choose import BACKENDS, Auto, Explanation, explain

__all__ = [
    "BACKENDS",
    "Auto",
    "Backend",
    "Call",
    "Explanation",
    "Refusal",
    "Result",
    "attention",
    "attention_scores",
    "attention_with_lse",
    "attention_with_weights",
    "explain",
]
