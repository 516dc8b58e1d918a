"""What the examiner must know of a model, measured or declared."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

from torch import Tensor, nn

from manyheads.errors import ExamineError

Slot = int | str
"""An argument of the model or a part of its output: its index, or its name."""

STREAMS = ("x", "context", "value")
"""Facts that name what tokens are drawn for."""
ARGUMENTS = (*STREAMS, "padding", "mask", "context_padding", "documents", "positions")
"""Facts that name an argument."""


@dataclass(frozen=True)
class CacheFacts:
    """How a model is handed its cache, and how it hands it back.

    Args:
        argument: The argument that takes the cache.
        output: The part of the output that is the new cache; None if the one given is changed.
        start: Makes an empty one; None begins with None.
        reorder: Makes the cache of other rows, ``reorder(cache, index)``; None if it cannot.

    Raises:
        ExamineError: If one of the last two is no function.

    Example:
        >>> CacheFacts("past", output=1)
        CacheFacts(argument='past', output=1, start=None, reorder=None)
    """

    argument: Slot
    output: Slot | None = None
    start: Callable[[], Any] | None = None
    reorder: Callable[[Any, Tensor], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("start", "reorder"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ExamineError(
                    f"{name} must be a function; got {name}={type(given).__name__}. Give the class "
                    f"of the cache or a lambda that makes it, not the cache itself."
                )


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a model is meant to be. What is left None is inferred where it can be.

    Args:
        causal: Whether a token may see only itself and what stands before it; "prefix" if the
            first `prefix` tokens are seen by all.
        x: The argument whose tokens ask.
        out: The part of the output to judge.
        layout: How it and `x` lie: "batch" (batch, length, ...), "length" (length, batch, ...), or
            "pooled", one output for a whole row.
        weights: The part of the output that holds attention weights.
        padding: The argument that says which tokens of `x` are real, (batch, length).
        real: The value that marks a real token there.
        mask: The argument that says who may see whom, (q_len, kv_len) or with leading axes.
        seen: The value that marks a visible pair there.
        context: The argument that is attended to, if it is not `x`.
        value: The argument that is taken, if it is not the context.
        context_padding: The argument that says which tokens of the context are real; `real` marks
            them.
        documents: The argument with the number of each token's document.
        positions: The argument with the position of each token.
        prefix: How many first tokens all may see, in tokens.
        cache: How keys and values are cached.
        window: How many keys a query sees, its own included, in tokens.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        scale: What multiplies the scores; ``head_dim ** -0.5`` unless given.
        ordered: Whether the order of tokens is meant to matter.
        fresh: Whether the weights are as they were drawn, untrained.
        reference: Another model of the same weights whose answers are right; called as this one is.

    Raises:
        ExamineError: If a value is not what its fact must be.

    Example:
        >>> Facts(causal=True, padding="attention_mask", real=1).known
        {'causal': True, 'padding': 'attention_mask', 'real': 1}
    """

    causal: bool | Literal["prefix"] | None = None
    x: Slot | None = None
    out: Slot | None = None
    layout: Literal["batch", "length", "pooled"] | None = None
    weights: Slot | None = None
    padding: Slot | None = None
    real: bool | int | float | None = None
    mask: Slot | None = None
    seen: bool | int | float | None = None
    context: Slot | None = None
    value: Slot | None = None
    context_padding: Slot | None = None
    documents: Slot | None = None
    positions: Slot | None = None
    prefix: int | None = None
    cache: CacheFacts | None = None
    window: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    scale: float | None = None
    ordered: bool | None = None
    fresh: bool | None = None
    reference: nn.Module | None = None

    def __post_init__(self) -> None:
        for name, value in self.known.items():
            rule, kept = _RULES[name]
            if not kept(value):
                shown = repr(value) if isinstance(value, str | Real) else type(value).__name__
                raise ExamineError(
                    f"{name} must be {rule}; got {name}={shown}. Leave it out where it is not "
                    f"known."
                )

    @property
    def known(self) -> dict[str, Any]:
        """The facts that are not None, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def or_else(self, other: "Facts") -> "Facts":
        """These facts, and the other's where these say nothing."""
        return replace(other, **self.known)


Rule = tuple[str, Callable[[Any], bool]]
"""What a fact must be, in words and as a test."""


def _one_of(*words: bool | str) -> Rule:
    alike = [(type(word), word) for word in words]
    return f"one of {', '.join(map(repr, words))}", lambda value: (type(value), value) in alike


def _count(least: int) -> Rule:
    return (
        f"a whole number from {least} on",
        lambda value: (
            isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
        ),
    )


def _slot(what: str) -> Rule:
    whole = _count(0)[1]
    return (
        f"the name of {what}, or its place counted from 0",
        lambda value: isinstance(value, str) or whole(value),
    )


_RULES: dict[str, Rule] = {
    "causal": _one_of(True, False, "prefix"),
    "layout": _one_of("batch", "length", "pooled"),
    **dict.fromkeys(ARGUMENTS, _slot("an argument")),
    **dict.fromkeys(("out", "weights"), _slot("a part of the output")),
    **dict.fromkeys(
        ("real", "seen"), ("a number or a bool", lambda value: isinstance(value, Real))
    ),
    **dict.fromkeys(("ordered", "fresh"), _one_of(True, False)),
    **dict.fromkeys(("window", "num_heads", "num_kv_heads", "head_dim"), _count(1)),
    "prefix": _count(0),
    "scale": ("a number above 0", lambda value: isinstance(value, Real) and float(value) > 0),
    "cache": ("CacheFacts", lambda value: isinstance(value, CacheFacts)),
    "reference": ("a torch.nn.Module", lambda value: isinstance(value, nn.Module)),
}

MEANING = {
    "causal": "whether a token may see only itself and the past",
    "x": "the argument whose tokens ask",
    "weights": "the part of the output that holds attention weights",
    "padding": "the argument that says which tokens are real",
    "real": "the value in it that marks a real token, such as 1 or False",
    "mask": "the argument that says who may see whom",
    "seen": "the value in it that marks a visible pair, such as True or 0.0",
    "context": "the argument that is attended to",
    "value": "the argument that is taken",
    "documents": "the argument with each token's document",
    "positions": "the argument with each token's position",
    "cache": 'how the cache goes in and out, CacheFacts("past", output=1)',
    "window": "how many keys a query sees, its own included",
    "num_heads": "how many query heads there are",
    "ordered": "whether the order of tokens is meant to matter",
    "fresh": "whether the weights are as they were drawn, untrained",
    "reference": "which other model of the same weights is right",
}
"""What to declare where a check needs a fact that nobody knows."""
