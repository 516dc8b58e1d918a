"""What a summary needs of a call, by one pass over its scores."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.functional import Peak, Statistics
from manyheads.functional.masses import PairMass, by_distance
from manyheads.functional.passes import Question
from manyheads.functional.strongest import Peaks
from manyheads.lens.average import PerHead, over_queries
from manyheads.lens.given import uniform
from manyheads.lens.matches import copies
from manyheads.lens.places import offset_score, sink_mass
from manyheads.lens.spread import effective_keys
from manyheads.masks.plan import reads_head


class Glance(NamedTuple):
    """The rows of a call, and averages over them.

    Args:
        peak: The greatest weight of each row.
        distance: How far away each query looks, (batch, num_heads, q_len).
        numbers: By the name of a measure, (batch, num_heads).
    """

    peak: Peak
    distance: Tensor
    numbers: dict[str, PerHead]


def glance(
    call: Statistics, tokens: Int[Tensor, "*batch kv_len"] | None, *also: Question[Any]
) -> Glance:
    """Look at a call once.

    Args:
        call: The call.
        tokens: The ids of its keys' tokens, if it is self-attention.
        also: Whatever else is to be asked on the way.

    Raises:
        ShapeError: If the tokens are not one a key.
    """
    total = call.total()
    peaks, distances = Peaks(total), by_distance(call.call, total, torch.abs)
    behind = {} if tokens is None else {"duplicate": 0, "induction": 1}
    found = {name: copies(call, tokens, n) for name, n in behind.items() if tokens is not None}
    masses = {name: PairMass(total, each.pairs) for name, each in found.items()}
    call.meet(peaks, distances, *masses.values(), *also)
    numbers = {
        "effective_keys": effective_keys(call),
        "peak": over_queries(call, peaks.answer().weight),
        "distance": over_queries(call, distances.answer()),
        "previous": offset_score(call, 1),
        "next": offset_score(call, -1),
        "itself": offset_score(call, 0),
        "first": sink_mass(call),
        **{
            name: over_queries(call, mass.answer(), found[name].has)
            for name, mass in masses.items()
        },
    }
    return Glance(peaks.answer(), distances.answer(), numbers)


def by_chance(call: Statistics, tokens: Int[Tensor, "*batch kv_len"] | None) -> dict[str, PerHead]:
    """The numbers that heads would have which choose nothing."""
    even, heads = uniform(call), call.call.q.shape[1]
    if not _differ(even):
        # One of them is like all others.
        one = even.call._replace(**{x: getattr(even.call, x)[:, :1] for x in ("q", "k", "v")})
        even = Statistics(one)
    numbers = glance(even, tokens).numbers
    return {name: number.expand(-1, heads) for name, number in numbers.items()}


def _differ(even: Statistics) -> bool:
    """Whether some heads see other keys than others."""
    mask, bias = even.call.mask, even.call.bias
    if isinstance(bias, Tensor) and bias.shape[1] > 1:
        return True
    if mask is None:
        return False
    return reads_head(mask.rule) or any(pair.shape[1] > 1 for pair in mask.pairs.values())
