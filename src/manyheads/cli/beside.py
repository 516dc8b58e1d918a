"""What stands beside each other on a page: several texts, several models."""

from collections.abc import Sequence

from manyheads.cli.seen import Seen, see
from manyheads.errors import OptionError


def see_all(
    models: Sequence[str], texts: Sequence[str | None], inputs: Sequence[str]
) -> dict[str, Seen]:
    """Let every model read every text, and name each reading after what differs.

    Args:
        models: As `see` takes them.
        texts: What they read; None leaves a ``file.py:name`` to its example.
        inputs: See `see`.

    Raises:
        OptionError: If a model or a text comes twice, or two models could not be compared.
    """
    for option, given in (("--beside-model", models), ("--beside", texts)):
        twice = next((each for i, each in enumerate(given) if each in given[:i]), None)
        if twice is not None:
            raise OptionError(
                f"{option} must be another than those before; got {option}={twice!r} again. Leave "
                f"it out."
            )
    readings = {}
    for text in texts:
        first = see(models[0], text, inputs)
        for model in models:
            seen = first if model == models[0] else see(model, text, inputs)
            _check(models[0], first, model, seen)
            differs = [
                name or "its example"
                for name, of in ((model, models), (text, texts))
                if len(of) > 1
            ]
            readings[" · ".join(differs) or text or model] = seen
    return readings


def _check(model: str, seen: Seen, other: str, beside: Seen) -> None:
    """Refuse models whose heads have no partners, or whose tokens are not the same."""
    own, their = _heads(seen), _heads(beside)
    if own != their:
        raise OptionError(
            f"--beside-model must have as many layers and heads as MODEL; got "
            f"--beside-model={other!r} with {_counted(their)}, where {model!r} has "
            f"{_counted(own)}. Look at each by itself."
        )
    for mine, others in ((seen.queries, beside.queries), (seen.keys, beside.keys)):
        for tokens, theirs in zip(mine.values(), others.values(), strict=True):
            if tokens != theirs:
                raise OptionError(
                    f"--beside-model must read the same tokens as MODEL; got "
                    f"--beside-model={other!r}, {_apart(theirs, tokens)}. Look at each by itself."
                )


def _heads(seen: Seen) -> list[int]:
    return [len(portrait.summaries) for portrait in seen.portraits]


def _counted(heads: list[int]) -> str:
    counts = "/".join(str(each) for each in sorted(set(heads)))
    return f"{len(heads)} layers of {counts} heads"


def _apart(theirs: list[str], own: list[str]) -> str:
    if len(theirs) != len(own):
        return f"which reads {len(theirs)} where MODEL reads {len(own)}"
    at = next(i for i, pair in enumerate(zip(theirs, own, strict=True)) if pair[0] != pair[1])
    return f"whose token {at} is {theirs[at]!r} where MODEL's is {own[at]!r}"
