"""The ONNX project's own cases of an operator, made anew by the generators in its package.

Nothing is downloaded: importing a generator's module runs it, from a fixed seed for each case.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.test.case import node as generators
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One case: attributes, inputs and outputs by the names that the operator gives them."""

    name: str
    attributes: dict[str, Any]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    rtol: float
    atol: float

    def check(self, name: str, got: Tensor) -> None:
        """Compare one output as ONNX compares it: shape, dtype, then values."""
        expected = self.outputs[name]
        # Its runner grants bfloat16 two units in the last place; so do we float16, whose numbers
        # the generators round at every step.
        rtol = max(self.rtol, 2 * torch.finfo(expected.dtype).eps)
        torch.testing.assert_close(got, expected, rtol=rtol, atol=self.atol, equal_nan=True)


def cases(operator: str) -> list[Case]:
    """Every case of an operator, in the generators' order.

    The twins of each case, in which the operator is replaced by its definition, are left out: they
    have the same numbers.
    """
    (module,) = (
        module.name
        for module in pkgutil.iter_modules(generators.__path__)
        if module.name.replace("_", "") == operator.lower()
    )
    importlib.import_module(f"{generators.__name__}.{module}")
    return [
        _read(case)
        for case in generators._NodeTestCases
        if [node.op_type for node in case.model.graph.node] == [operator]
        and "_expanded" not in case.name
    ]


def _read(case: Any) -> Case:
    node = case.model.graph.node[0]
    versions = {opset.domain: opset.version for opset in case.model.opset_import}
    schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    ((inputs, outputs),) = case.data_sets
    return Case(
        case.name.removeprefix("test_"),
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        _by_name(schema.inputs, node.input, inputs),
        _by_name(schema.outputs, node.output, outputs),
        case.rtol,
        case.atol,
    )


def _by_name(formal: Any, given: Any, values: Any) -> dict[str, Tensor]:
    # An optional tensor that is left out has an empty name and no value.
    names = [slot.name for slot, name in zip(formal, given, strict=False) if name]
    return {name: _tensor(value) for name, value in zip(names, values, strict=True)}


def _tensor(value: np.ndarray) -> Tensor:
    if value.dtype.name == "bfloat16":  # a dtype that numpy borrows and torch does not read
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(value))


def named(case: Case) -> str:
    """What pytest calls a test of a case."""
    return case.name


def split(x: Tensor, num_heads: int | None) -> Tensor:
    """(batch, length, heads * width) with its heads apart, as ours are; others as they are."""
    return x if num_heads is None else x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
