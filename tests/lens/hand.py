"""Heads that are built by hand to do exactly one thing."""

import torch
from torch import Tensor

import manyheads as mh
from manyheads.functional import Statistics

TEXT = torch.tensor([3, 1, 4, 1, 5, 9, 3, 1, 4, 1, 5])


def looks_at(keys: list[int], kv_len: int | None = None) -> Tensor:
    """Weights (1, 1, q_len, kv_len) of a head whose each query looks at one key, -1 at none."""
    rows = torch.zeros(len(keys), kv_len or len(keys))
    for query, key in enumerate(keys):
        if key >= 0:
            rows[query, key] = 1.0
    return rows[None, None]


def looked_up(ids: Tensor, behind: int) -> list[int]:
    """For each token the last key so far behind an earlier copy of it; else the first key."""
    found = []
    for query, own in enumerate(ids.tolist()):
        there = [key for key in range(behind, query) if int(ids[key - behind]) == own]
        found.append(there[-1] if there else 0)
    return found


def matcher(ids: Tensor, behind: int) -> Statistics:
    """A call whose queries and keys are one-hot tokens, so that equal ones meet: no weights given.

    The key of each place is the token so far behind it, as a previous-token head would write it.
    """
    one_hot = torch.nn.functional.one_hot(ids, 10).float()[None, None]
    keys = one_hot.roll(behind, dims=2)
    keys[:, :, :behind] = 0
    return mh.statistics(one_hot, keys, keys, mh.Causal(), scale=50.0)
