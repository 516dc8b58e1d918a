"""One backend beside the reference, in the same call."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.functional import Backend
from manyheads.functional.reference import REFERENCE
from manyheads.laws.calls import BackendCase, Inputs, draw
from manyheads.laws.law import TOLERANCE, LawBroken, require, require_close


@dataclass(frozen=True)
class Trial:
    """A backend, and how hard it is tried."""

    backend: Backend
    case: BackendCase
    thorough: bool

    def __str__(self) -> str:
        return f"backend={self.backend.name}"

    def agree(self, **changes: Any) -> None:
        """Hold the backend to the reference, in one call that differs from the usual one so."""
        case = dataclasses.replace(self.case, **changes)
        try:
            self._agree(case)
        except LawBroken:
            raise
        except Exception as error:
            raise LawBroken(case, f"raised {error!r}") from error

    def _agree(self, case: BackendCase) -> None:
        inputs = draw(case)
        call = inputs.call(inputs.tensors)
        if next(self.backend.refusals(call), None) is not None:
            return  # that it refuses as it should is a law of its own
        found = _results(self.backend, inputs, inputs.tensors)
        # The reference reads the same numbers in a wider dtype: rounding is the backend's alone.
        wide = {name: tensor.double() for name, tensor in inputs.tensors.items()}
        right = _results(REFERENCE, inputs, wide)
        require(found["output"].dtype == case.dtype, case, f"output is {found['output'].dtype}")
        for name, tensor in right.items():
            size = _size(name, wide, right)
            require_close(
                name, found[name], tensor, case, tolerance=TOLERANCE[case.dtype], size=size
            )


def _results(backend: Backend, inputs: Inputs, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    grad = inputs.case.grad
    leaves = {name: tensor.detach().requires_grad_(grad) for name, tensor in tensors.items()}
    result = backend.run(inputs.call(leaves))
    found = {"output": result.output}
    if inputs.case.need != "output":
        extra = result.weights if inputs.case.need == "weights" else result.lse
        assert extra is not None
        found[inputs.case.need] = extra
    if grad:
        gradients = torch.autograd.grad(
            _loss(found, inputs.case), list(leaves.values()), allow_unused=True
        )
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            found[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return found


def _loss(found: dict[str, Tensor], case: BackendCase) -> Tensor:
    # A weight of its own for each number, the same whichever backend made it.
    total = found["output"].new_zeros((), dtype=torch.float64)
    for tensor in found.values():
        generator = torch.Generator().manual_seed(case.seed + 1)
        weight = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        weight = weight.to(tensor.device, case.dtype).double()
        number = tensor.double()
        total = total + (weight * number.masked_fill(number == -torch.inf, 0.0)).sum()
    return total


def _size(name: str, tensors: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    # An output is a mean of values, so its error is a share of the largest of them.
    source = tensors["v"] if name == "output" else right[name]
    finite = source.detach()[source.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
