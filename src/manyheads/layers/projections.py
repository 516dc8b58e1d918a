"""Linear maps of a stream into queries, keys and values; and state dicts of either kind."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import OptionError

Projections = Literal["separate", "packed"]
ProjectionBias = bool | Literal["qkv"]

NAMES = ("q_proj", "k_proj", "v_proj")


class PackedLinear(nn.Linear):
    """Several projections of one stream in one matrix, one below the other.

    Args:
        in_features: Width of the stream.
        widths: Width of each projection.
        bias: Whether each adds a bias.
        device: Where the weights go.
        dtype: Of what type they are.
    """

    def __init__(
        self,
        in_features: int,
        widths: tuple[int, ...],
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.widths = widths
        super().__init__(in_features, sum(widths), bias, device, dtype)

    def project(self, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        """Projections ``first`` to ``last - 1`` of x, by one product."""
        start, stop = sum(self.widths[:first]), sum(self.widths[:last])
        bias = None if self.bias is None else self.bias[start:stop]
        return F.linear(x, self.weight[start:stop], bias).split(self.widths[first:last], dim=-1)


def check_projections(projections: str, widths: set[int]) -> None:
    """Refuse a packing that cannot be."""
    if projections not in ("separate", "packed"):
        raise OptionError(
            f"projections must be 'separate' or 'packed'; got projections={projections!r}. They "
            f"compute the same and load each other's weights."
        )
    if projections == "packed" and len(widths) > 1:
        raise OptionError(
            f"packed projections must read streams of one width; got widths {sorted(widths)}. Use "
            f"projections='separate'."
        )


def check_bias(bias: object) -> None:
    """Refuse what does not say which projections add a bias."""
    if bias is not True and bias is not False and bias != "qkv":
        raise OptionError(
            f"bias must be True, False or 'qkv'; got bias={bias!r}. GPT-2 has True, Llama False, "
            f"Qwen2 'qkv'."
        )


def convert_state(
    state: dict[str, Any], prefix: str, widths: tuple[int, ...], packed: bool
) -> None:
    """Rename and cut or join, in place, the projections in a state dict of another kind.

    Understands our two kinds and that of ``torch.nn.MultiheadAttention``.
    """
    for kind, torch_name in (("weight", "in_proj_weight"), ("bias", "in_proj_bias")):
        if prefix + torch_name in state:
            state[f"{prefix}qkv_proj.{kind}"] = state.pop(prefix + torch_name)
        for name in NAMES:
            if f"{prefix}{name}_{kind}" in state:
                state[f"{prefix}{name}.{kind}"] = state.pop(f"{prefix}{name}_{kind}")
        whole = f"{prefix}qkv_proj.{kind}"
        parts = [f"{prefix}{name}.{kind}" for name in NAMES]
        if packed and all(part in state for part in parts):
            state[whole] = torch.cat([state.pop(part) for part in parts])
        elif not packed and whole in state and state[whole].shape[0] == sum(widths):
            if any(part in state for part in parts):
                continue
            # Copies, so that no two parameters come to share one storage.
            cut = state.pop(whole).split(widths)
            state.update({part: x.clone() for part, x in zip(parts, cut, strict=True)})
