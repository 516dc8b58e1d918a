"""How a module computes its attention, and what it is: read from a run of it."""

from collections.abc import Mapping
from typing import Any

import torch
from tests.museum.exhibit import Exhibit
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

KERNELS = {
    "multi_head_attention_forward": "nn.MultiheadAttention",
    "scaled_dot_product_attention": "SDPA",
    "einsum": "einsum",
    "matmul": "matmul",
    "bmm": "matmul",
}
"""What a call is a sign of, the most telling first."""


class _Calls(TorchFunctionMode):
    """Keeps the names of the functions that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(getattr(func, "__name__", "").strip("_"))
        return func(*args, **(kwargs or {}))


def manner_of(exhibit: Exhibit, model: nn.Module) -> tuple[str, str]:
    """The function that mixes values, and the kind of model around it."""
    calls = _Calls()
    with torch.no_grad(), calls:
        output = model.eval()(*exhibit.args, **exhibit.kwargs)
    kernel = next((sign for name, sign in KERNELS.items() if name in calls.names), "other")
    return kernel, _kind(exhibit, output)


def _kind(exhibit: Exhibit, output: Any) -> str:
    given = {id(each): each for each in (*exhibit.args, *exhibit.kwargs.values())}
    streams = [each for each in given.values() if isinstance(each, Tensor)]
    floats = [each for each in streams if each.is_floating_point()]
    if exhibit.facts.cache is not None:
        return "cached decoder"
    if any(each.ndim == 4 and each.shape[-1] > 13 for each in floats):
        return "image model"
    names = {"input_ids", "attention_mask", "pixel_values", "input_features"}
    if (isinstance(output, Mapping) and names & exhibit.kwargs.keys()) or isinstance(output, dict):
        return "Hugging Face style"
    if len({each.shape[1] for each in streams if each.ndim > 1}) > 1:
        return "encoder-decoder" if not floats else "cross-attention"
    return "layer" if floats else "language model"
