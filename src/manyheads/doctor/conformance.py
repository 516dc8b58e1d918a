"""Hold anyone's attention function to the laws, and tell every one that it breaks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from manyheads.errors import DTypeError
from manyheads.laws import Convention, LawBroken
from manyheads.laws.attention import LAWS, Function, Stranger
from manyheads.laws.law import hold

Law = Callable[..., None]
OURS = Convention()


@dataclass(frozen=True)
class LawVerdict:
    """What an attention function does with one law.

    Args:
        law: The law's name.
        says: What the law says, in a sentence.
        kept: Whether the function keeps it.
        case: What it was tried with, if it is broken.
        measured: What was found then.
        instead: What else may be declared under which it is kept, such as ``empty='mean'``;
            empty if nothing.
    """

    law: str
    says: str
    kept: bool
    case: str = ""
    measured: str = ""
    instead: str = ""


@dataclass(frozen=True)
class Conformance:
    """Every law of attention and whether a function keeps it; prints as a list.

    Args:
        function: Its name.
        convention: What was declared of it.
        verdicts: One for each law, in reading order.
    """

    function: str
    convention: Convention
    verdicts: tuple[LawVerdict, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the laws that are broken."""
        return tuple(each.law for each in self.verdicts if not each.kept)

    @property
    def conforms(self) -> bool:
        """Whether all are kept."""
        return not self.broken

    def __str__(self) -> str:
        kept = sum(each.kept for each in self.verdicts)
        lines = [f"{self.function}: keeps {kept} of {len(self.verdicts)} laws"]
        for each in self.verdicts:
            lines.append(f"{'kept  ' if each.kept else 'BROKEN'} {each.law}: {each.says}")
            if not each.kept:
                lines += [f"       {each.measured}", f"       with {each.case}"]
            if each.instead:
                lines.append(f"       kept if declared with {each.instead}")
        return "\n".join(lines)


def conformance(
    attention_function: Function,
    convention: Convention = OURS,
    *,
    device: str = "cpu",
    seed: int = 0,
) -> Conformance:
    """Hold an attention function to the contract, law by law, under the convention it declares.

    `check_attention` is the same as an assert that stops at the first law.

    Args:
        attention_function: Called with (q, k, v, mask), returns the output; the mask may be None.
        convention: What it takes and means: layout, polarity of the mask, order of grouped heads,
            scale, empty rows. Our own, unless given. Its masks say all about who sees whom, so
            causality is aligned by the caller: the queries are the last of the keys.
        device: Where it is tried.
        seed: Of the numbers that are drawn.

    Raises:
        DTypeError: If it cannot be called.

    Example:
        >>> import torch.nn.functional as F, manyheads as mh
        >>> from manyheads.laws import Convention
        >>> def fused(q, k, v, mask):
        ...     return F.scaled_dot_product_attention(q, k, v, mask)
        >>> mh.doctor.conformance(fused, Convention(grouped="no")).broken
        ('hidden_keys_may_hold_anything',)
    """
    if not callable(attention_function):
        raise DTypeError(
            f"attention_function must be a function of (q, k, v, mask); got attention_function="
            f"{type(attention_function).__name__}. Wrap a module's or a kernel's call in one."
        )
    stranger = Stranger(attention_function, convention, seed, device)
    verdicts = tuple(_verdict(law, stranger) for law in LAWS)
    name = getattr(attention_function, "__name__", type(attention_function).__name__)
    return Conformance(name, convention, verdicts)


def _verdict(law: Law, stranger: Stranger) -> LawVerdict:
    says = (law.__doc__ or "").strip().splitlines()[0]
    broken = _broken(law, stranger)
    if broken is None:
        return LawVerdict(law.__name__, says, kept=True)
    case, measured = str(broken.case), broken.measured
    instead = next(
        (
            word
            for word, other in _others(stranger.convention).items()
            if _broken(law, replace(stranger, convention=other)) is None
        ),
        "",
    )
    return LawVerdict(law.__name__, says, False, case, measured, instead)


def _broken(law: Law, stranger: Stranger) -> LawBroken | None:
    try:
        hold((law,), stranger)
    except LawBroken as broken:
        return broken
    return None


def _others(convention: Convention) -> dict[str, Convention]:
    """Conventions that differ in one thing, by what it is."""
    choices: dict[str, tuple[Any, ...]] = {
        "mask": ("may see", "hidden", "added"),
        "layout": ("heads first", "length first"),
        "grouped": ("neighbours", "strided", "no"),
        "empty": ("zero", "mean"),
        "hidden": ("anything", "finite"),
        "scale": (1.0,),
    }
    found: dict[str, Convention] = {}
    for name, values in choices.items():
        for value in values:
            if getattr(convention, name) != value:
                changed: dict[str, Any] = {name: value}
                found[f"{name}={value!r}"] = replace(convention, **changed)
    return found
