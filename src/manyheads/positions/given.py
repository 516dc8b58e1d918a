"""What callers give: a stream, the positions of its tokens, and how they call."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import DeviceError, DTypeError, ShapeError
from manyheads.shapes import Positions, check_positions, check_tensor, nobody_intercepts


def check_stream(x: Float[Tensor, "batch length d_model"], d_model: int) -> None:
    """Refuse what is not a stream of floats of this width."""
    if x.ndim != 3 or x.shape[-1] != d_model:
        raise ShapeError(
            f"x must be (batch, length, d_model) with d_model={d_model}; got "
            f"shape={tuple(x.shape)}. Add a batch axis with x.unsqueeze(0), or build the module "
            f"for the width of x."
        )
    if not x.is_floating_point():
        raise DTypeError(f"x must be of floats; got x={x.dtype}. Embed the token ids first.")


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse a tensor that lives elsewhere than ``x``."""
    if tensor.device != device:
        raise DeviceError(
            f"{name} must be where x is, on {device}; got {name}={tensor.device}. "
            f"Move it first, with {name}.to(x.device)."
        )


def read_positions(
    positions: Positions, *, batch: int, length: int, device: torch.device
) -> int | Tensor:
    """The first position of a run, or one number a token; refused if they do not fit the tokens."""
    if positions is None:
        return 0
    given = check_positions("positions", positions, batch, length)
    if isinstance(given, Tensor):
        check_device("positions", given, device)
    return given


def check_table_positions(positions: Tensor) -> None:
    """Refuse what is not (length,) or (batch, length) integers."""
    shape = check_tensor("positions", positions).shape
    batch, length = shape if len(shape) == 2 else (1, shape.numel())
    check_positions("positions", positions, batch, length)


def as_tensor(
    positions: int | Tensor, *, length: int, device: torch.device
) -> Int[Tensor, " length"] | Int[Tensor, "batch length"]:
    """One number a token; below 0 means that there is no token."""
    if isinstance(positions, Tensor):
        return positions
    return torch.arange(positions, positions + length, device=device)


def is_plain_call(x: Tensor) -> bool:
    """Whether this is ordinary eager code: nobody traces, maps, fakes or counts.

    Only then may values be read, results be kept for the next call, and memory be reinterpreted.
    """
    return (
        type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and nobody_intercepts()
    )
