"""Numbers for each pair of tokens, where the example is long."""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.path import running
from manyheads.doctor.patient import Patient

MUCH = 100e6
"""Bytes below which nobody minds."""


def look(patient: Patient) -> Iterator[Sign]:
    """Find what is written out for each pair, and count its bytes at the example's own size."""
    if patient.x.ndim > 3:
        raise CannotTell("the example has no tokens")
    slot, axis = patient.facts.context, 0 if patient.facts.layout == "length" else 1
    context = patient.base.get(slot)
    kv_len = context.shape[axis] if isinstance(context, Tensor) else patient.length
    growth = math.prod(patient.given) / (patient.batch * patient.length * kv_len)
    with running(patient.model) as path, _Pairs(patient.length, kv_len, path) as recorder:
        patient.ask(patient.base)
    if not recorder.largest:
        return
    size, where, name = max(recorder.largest)
    # What is examined in float64 was mostly given in fp32.
    size *= growth / (2 if patient.is_wide else 1)
    if size > MUCH:
        unit = f"bytes are written by {name} for pairs of {patient.given[1]} tokens"
        yield Sign(where or type(patient.model).__name__, size, unit, "memory linear in the length")


class _Pairs(TorchDispatchMode):
    """Keeps the size, place and name of each operation that writes a number for each pair."""

    def __init__(self, q_len: int, kv_len: int, path: list[str]) -> None:
        super().__init__()
        self.pairs, self.largest = (q_len, kv_len), list[tuple[float, str, str]]()
        self.path = path

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and tuple(out.shape[-2:]) == self.pairs and out.ndim > 2:
            size = float(out.numel() * out.element_size())
            if size <= out.untyped_storage().nbytes():  # no view that repeats what is there
                where = self.path[-1] if self.path else ""
                self.largest.append((size, where, func.__name__.split(".")[0]))
        return out


CHECK = Check(
    code="quadratic_memory",
    severity="note",
    title="Memory grows with the square of the length",
    explanation="Scores, weights or a mask are written out for each head and pair of tokens. At "
    "this length that is most of the memory, and fused kernels do without it.",
    cure="Call scaled_dot_product_attention without asking for weights, with a mask that is "
    "broadcast and not repeated for each head; or attention with a window. `manyheads explain` "
    "tells which kernel serves.",
    healthy="memory linear in the length",
    source="Dao et al. 2022 (arXiv:2205.14135); pytorch/pytorch#116472",
    look=look,
)
