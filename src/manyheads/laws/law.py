"""What a law is, how a suite of laws is held, and what is said when one is broken."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Suite = Sequence[Callable[..., None]]
"""Laws in reading order; each takes the case or the member that it is held against."""

TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-7,
}
"""How far a result may be off, as a share of the largest number in what it was made from."""


class LawBroken(AssertionError):
    """A law of attention that a member does not keep.

    Args:
        case: What it was tried with, so that the failure can be had again.
        measured: What was found.
        law: The law's name; filled in by `hold`.
    """

    def __init__(self, case: object, measured: str, law: str = "") -> None:
        self.case, self.measured, self.law = case, measured, law
        super().__init__(f"{law}\n  with {case}:\n  {measured}")


def hold(suite: Suite, *arguments: object) -> None:
    """Hold a member against each law of a suite.

    Args:
        suite: The laws.
        arguments: What each of them is called with.

    Raises:
        LawBroken: At the first law that the member breaks; it names law, case and measure.
    """
    for law in suite:
        name = f"{law.__name__}: {(law.__doc__ or '').strip().splitlines()[0]}"
        try:
            law(*arguments)
        except LawBroken as broken:
            raise LawBroken(broken.case, broken.measured, name) from broken.__cause__
        except Exception as error:
            raise LawBroken(arguments[-1], f"raised {error!r}", name) from error


def require(condition: bool, case: object, measured: str) -> None:
    """Break the law unless a condition holds."""
    if not condition:
        raise LawBroken(case, measured)


def require_same(name: str, found: Tensor, right: Tensor, case: object) -> None:
    """Break the law unless two tensors of bools or integers are equal."""
    require(found.shape == right.shape, case, f"{name} has {_shapes(found, right)}")
    wrong = (found != right).nonzero()
    if len(wrong):
        raise LawBroken(
            case,
            f"{name} differs in {len(wrong)} of {right.numel()} places, first at "
            f"{tuple(wrong[0].tolist())}",
        )


def require_close(
    name: str, found: Tensor, right: Tensor, case: object, *, tolerance: float, size: float = 0.0
) -> None:
    """Break the law unless two tensors of numbers agree.

    Args:
        name: What they are.
        found: What the member gave.
        right: What it should have given, perhaps in a wider dtype.
        case: What it was tried with.
        tolerance: The greatest error, as a share of `size`.
        size: What errors are measured against; at least the largest finite number of `right` is
            taken, and at least 1.
    """
    require(found.shape == right.shape, case, f"{name} has {_shapes(found, right)}")
    if not right.numel():
        return
    found, right = found.detach().double(), right.detach().double()
    finite = right.isfinite()
    alike = torch.where(finite, found.isfinite(), found == right)
    require(bool(alike.all()), case, f"{name} holds {_strange(found, right)} where it should not")
    size = max(size, 1.0, float(right[finite].abs().max()) if finite.any() else 0.0)
    error = float((found - right)[finite].abs().max()) if finite.any() else 0.0
    if not error <= tolerance * size:
        raise LawBroken(
            case, f"{name} is off by {error:.3g}; at most {tolerance * size:.3g} may be"
        )


def _shapes(found: Tensor, right: Tensor) -> str:
    return f"shape {tuple(found.shape)} and should have {tuple(right.shape)}"


def _strange(found: Tensor, right: Tensor) -> str:
    wrong = found[torch.where(right.isfinite(), ~found.isfinite(), found != right)]
    kinds = {str(value) if not math.isfinite(value) else "numbers" for value in wrong.tolist()}
    return " and ".join(sorted(kinds))
