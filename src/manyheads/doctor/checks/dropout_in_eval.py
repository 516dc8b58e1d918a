"""Dropout that stays on in eval."""

from collections.abc import Iterator
from typing import Any

from torch.overrides import TorchFunctionMode

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient

SEEDS = (0, 1, 2)
UNSETTLED = (
    "train_eval_mismatch",
    "batch_mixing",
    "rope_on_values",
    "heads_merged_wrong",
    "softmax_axis",
    "key_value_swapped",
    "cache_mismatch",
    "position_offset_cache",
    "beam_aliasing",
    "left_pad_position",
    "gradient_dead",
)
"""What noise in the answers is taken for by other checks."""


class _Droppers(TorchFunctionMode):
    """Records calls that drop something."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            if share:
                self.seen.append(f"{name}(dropout_p={share})")
        elif "dropout" in name:
            on = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            if on and share:
                self.seen.append(f"{name}(p={share})")
        return func(*args, **kwargs)


def droppers(patient: Patient) -> list[str]:
    """Functions that drop something in eval, as they were called."""
    with _Droppers() as mode:
        patient.ask(patient.base)
    return mode.seen


def spread(patient: Patient) -> float:
    """How much answers to one question differ under other seeds, as a share of the output."""
    answers = [patient.ask(patient.base, seed=seed) for seed in SEEDS]
    return max(float(patient.differs(answers[0], each).max()) for each in answers[1:])


def look(patient: Patient) -> Iterator[Sign]:
    """Ask twice with other random numbers, and see who drew them."""
    off = spread(patient)
    if off and (seen := droppers(patient)):
        yield Sign(seen[0], off, "of the output changes between two calls in eval", "none")


CHECK = Check(
    code="dropout_in_eval",
    severity="error",
    title="Dropout on in eval",
    explanation="Dropout is applied although the model is in eval: answers are noisy, differ from "
    "call to call, and advance the global random state. A functional dropout, and the dropout_p of "
    "scaled_dot_product_attention, know nothing of model.eval().",
    cure="Pass p if self.training else 0.0 to the function, or use nn.Dropout.",
    healthy="bit-identical answers in eval",
    source="torch.nn.functional.scaled_dot_product_attention, notes on dropout_p; "
    "pytorch/pytorch#124464",
    look=look,
    symptoms=("nondeterministic_eval", *UNSETTLED, "weights_not_one"),
)
