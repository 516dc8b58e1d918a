"""Heads that are too narrow for as many keys."""

import math
from collections.abc import Iterator

from manyheads.doctor.check import Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Compare the width of heads with the keys of the example, as long as it was given."""
    keys = patient.given[2]
    for each in observed(patient):
        if each.head_dim < math.log2(max(keys, 1)):
            unit = f"features must tell {keys} keys apart, in {each.call.q.shape[1]} heads"
            enough = f"{math.ceil(math.log2(keys))} or more"
            yield Sign(each.where, each.head_dim, unit, enough)
            return


CHECK = Check(
    code="head_dim_small",
    severity="note",
    title="Heads are too narrow",
    explanation="A head scores keys by as many features as it is wide. With fewer than log2 of the "
    "number of keys, not even signs could tell them apart, and scores of many keys are tied.",
    cure="Take fewer heads of the same d_model, or give heads a width of their own (head_dim); 32 "
    "to 128 are usual.",
    healthy="a head_dim of log2(kv_len) at the very least",
    source="Bhojanapalli et al. 2020, on the low-rank bottleneck (arXiv:2002.07028)",
    look=look,
)
