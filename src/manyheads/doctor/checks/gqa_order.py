"""Grouped keys and values that are tiled instead of repeated."""

from collections.abc import Iterator

import torch
from torch import Tensor

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """See which heads share a key."""
    grouped = False
    for each in observed(patient):
        owner = _owners(each.call.k)
        shared = len(set(owner))
        if not 1 < shared < len(owner):
            continue
        grouped = True
        group = len(owner) // shared
        right = [group * (head // group) for head in range(len(owner))]
        if owner != right:
            wrong = sum(a != b for a, b in zip(owner, right, strict=True))
            unit = f"of {len(owner)} query heads read another group's key, of {shared} kv heads"
            yield Sign(each.where, wrong, unit, f"0: neighbours share, {group} to a kv head")
    if not grouped:
        raise CannotTell("no written-out heads share a key")


def _owners(k: Tensor) -> list[int]:
    """For each head the first head with the same keys."""
    return [
        next(first for first in range(head + 1) if torch.equal(k[:, first], k[:, head]))
        for head in range(k.shape[1])
    ]


CHECK = Check(
    code="gqa_order",
    severity="error",
    title="Grouped heads are in the wrong order",
    explanation="Keys and values of fewer heads were tiled (0 1 0 1) instead of repeated "
    "(0 0 1 1), so that query heads read another group's keys. Shapes agree; weights from "
    "elsewhere give nonsense.",
    cure="k.repeat_interleave(num_heads // num_kv_heads, dim=1), not k.repeat.",
    healthy="query head h reads kv head h // (num_heads // num_kv_heads)",
    source="Ainslie et al. 2023 (arXiv:2305.13245); apple/axlearn#842",
    look=look,
)
