"""The words for axes, and the checks that every public entry shares.

Axes: batch heads kv_heads q_len kv_len length head_dim value_dim d_model. Functions take
(batch, heads, length, head_dim), modules take (batch, length, d_model).
"""

from numbers import Integral, Real

import torch
from torch import Tensor

from manyheads.errors import DeviceError, DTypeError, OptionError, PositionError, ShapeError

Positions = int | Tensor | None
"""None, the first position of a run, or a tensor (length,) or (batch, length), in tokens."""


def values_are_cheap(tensor: Tensor) -> bool:
    """Whether looking at values costs no device sync and breaks no graph."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and nobody_intercepts()
    )


def nobody_intercepts() -> bool:
    """Whether operations reach torch: no mode fakes or counts them, though one may watch."""
    depth = torch._C._len_torch_dispatch_stack()
    if not depth:
        return True
    modes = map(torch._C._get_dispatch_stack_at, range(depth))
    return all(getattr(mode, "only_watches", False) for mode in modes)


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that cannot attend to one another."""
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if len(q_shape) != 4 or len(k_shape) != 4 or len(v_shape) != 4:
        _refuse_rank(q, k, v)
    if not (q_shape[0] == k_shape[0] == v_shape[0]):
        raise ShapeError(
            f"q, k and v must have one batch size; got q={q_shape[0]}, k={k_shape[0]}, "
            f"v={v_shape[0]}. Expand the smaller ones."
        )
    if k_shape[1] != v_shape[1]:
        raise ShapeError(
            f"k and v must have the same number of heads; got k={k_shape[1]}, v={v_shape[1]}. "
            f"Project both to num_kv_heads heads."
        )
    if k_shape[1] == 0 or q_shape[1] % k_shape[1]:
        raise ShapeError(
            f"num_heads must be a multiple of num_kv_heads; got num_heads={q_shape[1]}, "
            f"num_kv_heads={k_shape[1]}. If yours are (batch, length, heads, head_dim), "
            f"call .transpose(1, 2)."
        )
    if k_shape[2] != v_shape[2]:
        raise ShapeError(
            f"k and v must have one kv_len; got k={k_shape[2]}, v={v_shape[2]}. "
            f"Each key needs its value."
        )
    if q_shape[3] != k_shape[3] or q_shape[3] == 0:
        raise ShapeError(
            f"q and k must have one head_dim, at least 1; got q={q_shape[3]}, k={k_shape[3]}. "
            f"Project both to the same width; only v may have its own."
        )
    if not (q.dtype == k.dtype == v.dtype) or not _has_arithmetic(q.dtype):
        _refuse_dtype(q, k, v)
    if not (q.device == k.device == v.device):
        raise DeviceError(
            f"q, k and v must be on one device; got q={q.device}, k={k.device}, v={v.device}. "
            f"Move them with .to(device)."
        )


def _has_arithmetic(dtype: torch.dtype) -> bool:
    # torch stores numbers of 8 bits and adds none.
    return dtype.is_floating_point and dtype.itemsize > 1


def _refuse_rank(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if tensor.ndim != 4:
            raise ShapeError(
                f"{name} must be (batch, heads, length, head_dim); got shape "
                f"{tuple(tensor.shape)}. Split the heads first: "
                f"x.unflatten(-1, (num_heads, -1)).transpose(1, 2)."
            )


def _refuse_dtype(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if not _has_arithmetic(tensor.dtype):
            raise DTypeError(
                f"{name} must be a floating-point tensor of 16 bits or more; got "
                f"{name}={tensor.dtype}. "
                f"Convert it with .float()."
            )
    raise DTypeError(
        f"q, k and v must have one dtype; got q={q.dtype}, k={k.dtype}, v={v.dtype}. "
        f"Convert them, or run under torch.autocast."
    )


def check_tensor(name: str, value: object) -> Tensor:
    """Return ``value`` if it is a tensor, and say what it is if it is not."""
    if not isinstance(value, Tensor):
        raise DTypeError(
            f"{name} must be a torch.Tensor; got {name}={type(value).__name__}. "
            f"Convert it with torch.as_tensor."
        )
    return value


def holds_integers(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers, which bools are not."""
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def check_positions(name: str, positions: Positions, batch: int, length: int) -> int | Tensor:
    """Return given positions as an int or an integer tensor that fits the tokens.

    Args:
        name: How the caller's argument is called.
        positions: The first position of a run, or a tensor (length,) or (batch, length).
        batch: How many sequences there are.
        length: How many tokens each has.
    """
    if isinstance(positions, Tensor):
        if not holds_integers(positions):
            raise PositionError(
                f"{name} must be integers; got {name}={positions.dtype}. Positions count tokens: "
                f"use torch.arange, or .long(). (bf16 cannot tell 256 from 257.)"
            )
        shape = tuple(positions.shape)
        if shape not in ((length,), (1, length), (batch, length)):
            raise PositionError(
                f"{name} must be (length,) or (batch, length) = ({batch}, {length}); got shape "
                f"{shape}. Give each token of the call its position."
            )
        return positions
    count = whole(positions)
    if count is None:
        raise PositionError(
            f"{name} must be None, an int or an integer tensor; got {name}={positions!r}. "
            f"An int is the first position of a run."
        )
    return count


def check_count(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` if it is an int of at least ``least``."""
    count = whole(value)
    if count is None or count < least:
        raise OptionError(
            f"{name} must be an int of at least {least}; got {name}={value!r}. "
            f"It counts things: give a whole number."
        )
    return count


def whole(value: object) -> int | None:
    """A whole number as an int, numpy's included; None for anything else.

    Example:
        >>> whole(3), whole(True), whole(3.0)
        (3, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | torch.SymInt):  # A symbol of the compiler stays what it is.
        return value  # type: ignore[return-value]
    return int(value) if isinstance(value, Integral) else None


def is_number(value: object) -> bool:
    """Whether a value is a real number, numpy's included; bools are words here, and no numbers.

    Example:
        >>> is_number(0.5), is_number(True), is_number("0.5")
        (True, False, False)
    """
    return isinstance(value, int | float | Real) and not isinstance(value, bool)


def check_probability(name: str, value: float) -> float:
    """Return ``value`` if it is a probability below 1."""
    if not is_number(value) or not 0.0 <= value < 1.0:
        raise OptionError(
            f"{name} must be a number in [0, 1); got {name}={value!r}. "
            f"It is the share that is dropped."
        )
    return float(value)


def head_counts(d_model: int) -> str:
    """The numbers of heads that divide ``d_model``, as text.

    Example:
        >>> head_counts(12)
        '1, 2, 3, 4, 6, 12'
    """
    return ", ".join(str(n) for n in range(1, d_model + 1) if d_model % n == 0)
