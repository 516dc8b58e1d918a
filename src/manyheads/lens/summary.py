"""What a head does, in a few numbers and in a word."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor

from manyheads.functional import Statistics
from manyheads.lens.checks import check_call, check_calls
from manyheads.lens.given import of_weights
from manyheads.lens.glance import Glance, by_chance, glance
from manyheads.lens.maps import Map, check_values, check_weights
from manyheads.probe import AttentionCall

Measure = Literal[
    "effective_keys", "peak", "distance", "previous", "next", "itself", "first", "duplicate",
    "induction",
]  # fmt: skip
MEASURES: tuple[Measure, ...] = get_args(Measure)
NAMES = {
    "induction": "what followed last time",
    "duplicate": "same token before",
    "previous": "previous token",
    "next": "next token",
    "itself": "itself",
    "first": "first token",
}
"""What a head is said to look at, by the mass that tells it; the most telling first."""
PLACES = {"previous token": "place before", "next token": "place after", "itself": "same place"}
"""The words for heads that read another text, where no key is the query's own token."""

_ENOUGH, _EVEN, _NEAR = 0.4, 0.98, 0.35


@dataclass(frozen=True)
class HeadSummary:
    """How one head spreads its weight; means over the queries that see anybody.

    Args:
        layer: The name of its layer.
        head: Its number.
        effective_keys: The exponential of the mean entropy of rows, in keys: 1 looks at one key, n
            spreads evenly over n.
        peak: The largest weight of a row, 0 to 1.
        distance: How far away it looks, in tokens.
        previous: The weight on the token before, 0 to 1.
        next: On the token behind.
        itself: On the query's own token; where queries and keys are of two texts, on the key at the
            same place.
        first: On the first token, where attention sinks stand.
        duplicate: On earlier copies of the query's token; None if tokens are not known.
        induction: On what followed those copies; None likewise.
        strongest: For each query of the first sequence the key with the largest weight; -1 if it
            sees nobody.
        does: What it looks at, in words: "what followed last time", "same token before", "previous
            token", "next token", "itself" or "first token", the first of these whose weight is at
            least 0.4 of the way from chance to certainty (a head that finds nothing to look up
            rests on the first token, which therefore comes last); else "evenly", "nearby" or
            "mixed".
    """

    layer: str
    head: int
    effective_keys: float
    peak: float
    distance: float
    previous: float
    next: float
    itself: float
    first: float
    duplicate: float | None
    induction: float | None
    strongest: tuple[int, ...]
    does: str


def summarize_heads(
    weights: Mapping[str, Float[Tensor, "_heads _q_len _kv_len"]] | Sequence[AttentionCall],
    tokens: Int[Tensor, "*batch kv_len"] | None = None,
) -> list[HeadSummary]:
    """Sum up each head by itself; an average over heads would say nothing of any of them.

    Args:
        weights: What `probe.watch` saw, at any length; or written-out weights by the name of a
            layer, of one sample, after the softmax.
        tokens: The ids of the text's tokens, for self-attention: heads that look for copies are
            told by them.

    Returns:
        One summary a head, in the order of layers and heads. A head none of whose queries sees
        anybody has 0 everywhere.

    Raises:
        ShapeError: If a rank is not 3, something is empty, or the tokens are not one a key.
        OptionError: If weights are not finite or not between 0 and 1.

    Example:
        >>> import torch
        >>> sharp, flat = torch.eye(4), torch.full((4, 4), 0.25)
        >>> one, other = summarize_heads({"layer": torch.stack([sharp, flat])})
        >>> one.effective_keys, other.effective_keys, one.strongest
        (1.0, 4.0, (0, 1, 2, 3))
        >>> one.does, other.does
        ('itself', 'evenly')
    """
    if isinstance(weights, Sequence):
        check_calls(weights)
        named: list[tuple[str, Statistics]] = [(call.where, call) for call in weights]
    else:
        named = []
        for layer, array in check_weights(weights).items():
            check_values([Map(layer, head, each) for head, each in enumerate(array)], "unit")
            named.append((layer, of_weights(weights[layer].detach().double().cpu()[None])))
    return [each for layer, call in named for each in summarize_layer(layer, call, tokens)]


def summarize_layer(
    layer: str, call: Statistics, tokens: Int[Tensor, "*batch kv_len"] | None = None
) -> list[HeadSummary]:
    """Sum up the heads of one call, at once while it is watched.

    Args:
        layer: Its name.
        call: The call.
        tokens: The ids of its keys' tokens, if it is self-attention.

    Example:
        >>> import torch, manyheads as mh
        >>> model = mh.MultiHeadAttention(16, 2).eval()
        >>> with mh.probe.watch(
        ...     model, each=lambda call: mh.lens.summarize_layer(call.where, call)
        ... ) as found:
        ...     _ = model(torch.randn(1, 9, 16))
        >>> len(found[0])
        2
    """
    check_call(call)
    return sum_up(layer, call, glance(call, tokens), tokens)


def sum_up(layer: str, call: Statistics, seen: Glance, tokens: Tensor | None) -> list[HeadSummary]:
    """Sum up the heads of a call that was looked at already."""
    of_heads, chance = _by_head(seen.numbers), _by_head(by_chance(call, tokens))
    return [
        HeadSummary(
            layer,
            head,
            **{name: own.get(name) for name in MEASURES},  # type: ignore[arg-type]
            strongest=tuple(seen.peak.key[0, head].tolist()),
            does=_does(own, even),
        )
        for head, (own, even) in enumerate(zip(of_heads, chance, strict=True))
    ]


def between_texts(head: HeadSummary) -> HeadSummary:
    """The same in words that are right where queries and keys are of two texts.

    Example:
        >>> import torch
        >>> (head,) = summarize_heads({"cross": torch.eye(4)[None]})
        >>> head.does, between_texts(head).does
        ('itself', 'same place')
    """
    return replace(head, does=PLACES.get(head.does, head.does))


def _by_head(numbers: dict[str, Tensor]) -> list[dict[str, float]]:
    """Numbers (batch, heads) as one record a head, averaged over the sequences."""
    heads = {name: of_heads.double().mean(dim=0).tolist() for name, of_heads in numbers.items()}
    return [dict(zip(heads, each, strict=True)) for each in zip(*heads.values(), strict=True)]


def _does(own: dict[str, float], chance: dict[str, float]) -> str:
    above = {
        name: (own[name] - chance[name]) / (1 - chance[name])
        for name in NAMES
        if chance.get(name, 1.0) < 1.0
    }
    found = next((name for name in NAMES if above.get(name, 0.0) >= _ENOUGH), None)
    if found is not None:
        return NAMES[found]
    if own["effective_keys"] >= _EVEN * chance["effective_keys"]:
        return "evenly"
    return "nearby" if own["distance"] <= _NEAR * chance["distance"] else "mixed"
