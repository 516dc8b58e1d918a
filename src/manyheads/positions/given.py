"""What callers give: the stream, and where its tokens stand."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from manyheads.errors import DeviceError, DTypeError, OptionError, PositionError, ShapeError

Positions = int | Tensor | None
"""None (0, 1, 2, ...), the first position of a run, or integers (length,) or (batch, length)."""


def check_positions(positions: Positions, *, batch: int, length: int, device: torch.device) -> None:
    """Refuse positions that cannot be those of ``batch`` rows of ``length`` tokens."""
    if positions is None or (isinstance(positions, int) and not isinstance(positions, bool)):
        return
    check_integers(positions)
    if positions.shape not in ((length,), (batch, length), (1, length)):
        raise PositionError(
            f"positions must be (length,)=({length},) or (batch, length)=({batch}, {length}); got "
            f"shape={tuple(positions.shape)}. Give one number a token; an int starts a run."
        )
    if positions.device != device:
        raise DeviceError(
            f"positions must be where x is, on {device}; got device={positions.device}. "
            f"Move them first, with positions.to({str(device)!r})."
        )


def check_integers(positions: Tensor) -> None:
    """Refuse a tensor that does not count tokens."""
    if not isinstance(positions, Tensor):
        raise DTypeError(
            f"positions must be None, an int or an integer tensor; got "
            f"type={type(positions).__name__}. For one number a token, wrap them in torch.tensor."
        )
    if positions.dtype == torch.bool or positions.is_floating_point() or positions.is_complex():
        raise DTypeError(
            f"positions must be integers, counted in tokens; got dtype={positions.dtype}. "
            f"Use positions.long(), or keep.cumsum(-1) - 1 for a mask of real tokens on the right."
        )


def as_tensor(
    positions: Positions, *, length: int, device: torch.device
) -> Int[Tensor, " length"] | Int[Tensor, "batch length"]:
    """One number a token, whatever was given; below 0 means that there is no token."""
    if isinstance(positions, Tensor):
        return positions
    start = 0 if positions is None else positions
    return torch.arange(start, start + length, device=device)


def check_stream(x: Tensor, d_model: int) -> None:
    """Refuse what is not a stream of floats of this width."""
    if x.ndim != 3 or x.shape[-1] != d_model:
        raise ShapeError(
            f"x must be (batch, length, d_model={d_model}); got shape={tuple(x.shape)}. "
            f"Add a batch axis with x.unsqueeze(0), or build the module for the width of x."
        )
    if not x.is_floating_point():
        raise DTypeError(
            f"x must be a stream of floats; got dtype={x.dtype}. Embed the token ids first."
        )


def check_width(name: str, width: int) -> None:
    """Refuse a size that is not a count."""
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise OptionError(
            f"{name} must be an integer of at least 1; got {name}={width!r}. "
            f"Give a count, of features or of tokens."
        )


def is_plain_call(x: Tensor) -> bool:
    """Whether this is ordinary eager code: nobody traces, maps or fakes the tensors.

    Only then may values be read, results be kept for the next call, and memory be reinterpreted.
    """
    return (
        type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
    )
