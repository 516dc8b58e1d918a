"""One call of attention, checked and settled: what every backend is handed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from manyheads.errors import DeviceError, DTypeError, OptionError, ShapeError
from manyheads.functional.bias import PlacedBias, check_bias, place_bias
from manyheads.masks import Bound, Mask, bind
from manyheads.positions import Bias
from manyheads.shapes import Positions, check_probability, check_qkv, is_number

Need = Literal["output", "weights", "lse"]


class Call(NamedTuple):
    """One call of attention.

    Args:
        q: (batch, num_heads, q_len, head_dim).
        k: (batch, num_kv_heads, kv_len, head_dim).
        v: (batch, num_kv_heads, kv_len, value_dim).
        mask: Who may see whom, settled; None if every query sees every key.
        bias: Added to the capped scores; four dimensions, broadcastable to the pairs, or an object
            and the positions that it reads.
        scale: Multiplies the scores.
        softcap: Bounds the scores, by ``softcap * tanh(scores / softcap)``.
        sink_logits: (num_heads,), further logits of the softmax that take weight and give nothing.
        dropout: The share of weights that is dropped.
        need: What the caller wants beside the output.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Bound | None
    bias: Tensor | PlacedBias | None
    scale: float
    softcap: float | None
    sink_logits: Tensor | None
    dropout: float
    need: Need

    @property
    def bound(self) -> Bound:
        """The mask; without one, that every query sees every key."""
        if self.mask is not None:
            return self.mask
        batch, _, q_len, _ = self.q.shape
        return bind(None, batch, q_len, self.k.shape[2], device=self.q.device)

    @property
    def needs_grad(self) -> bool:
        """Whether gradients of this call will be asked for."""
        return self.bias_needs_grad or (
            torch.is_grad_enabled()
            and any(
                tensor is not None and tensor.requires_grad
                for tensor in (self.q, self.k, self.v, self.sink_logits)
            )
        )

    @property
    def bias_needs_grad(self) -> bool:
        """Whether gradients will be asked of what is added to the scores."""
        if self.bias is None or not torch.is_grad_enabled():
            return False
        if isinstance(self.bias, Tensor):
            return self.bias.requires_grad
        return self.bias.needs_grad(self.q, self.k)

    def written_bias(self) -> Tensor | None:
        """The bias as a tensor of four dimensions, broadcastable to the pairs."""
        if isinstance(self.bias, PlacedBias):
            return self.bias.write(self.q, self.k, self.scale)
        return self.bias


class Result(NamedTuple):
    """What a backend gives back.

    Args:
        output: (batch, num_heads, q_len, value_dim).
        weights: (batch, num_heads, q_len, kv_len) before dropout, if they were needed.
        lse: (batch, num_heads, q_len), log-sum-exp of each row of scores, if it was needed.
    """

    output: Tensor
    weights: Tensor | None = None
    lse: Tensor | None = None


class Refusal(NamedTuple):
    """Why a backend cannot do a call, and the smallest change after which it could."""

    why: str
    cure: str


@dataclass(frozen=True)
class Backend:
    """One way to compute attention; a choice of speed, never of meaning.

    Args:
        name: What ``backend=`` calls it.
        summary: One line for people.
        refusals: Yields why it cannot do a call; nothing if it can.
        run: Does the call.
        extra_bytes: Memory it takes beyond inputs and output, in bytes.
        declines: Why "auto" passes it by in a call that it could do, because the next ones are
            faster; None if it gains.
        quadratic: Whether a call makes it hold a tensor of q_len x kv_len.
        least_pairs: Pairs of queries and keys, over all sequences, below which "auto" need not ask.
        devices: Where "auto" may take it; None for everywhere. Elsewhere it must be named.
    """

    name: str
    summary: str
    refusals: Callable[[Call], Iterator[Refusal]]
    run: Callable[[Call], Result]
    extra_bytes: Callable[[Call], int]
    declines: Callable[[Call], str | None] = lambda call: None
    quadratic: Callable[[Call], bool] = lambda call: True
    least_pairs: int = 0
    devices: tuple[str, ...] | None = None

    def serves(self, call: Call) -> bool:
        """Whether "auto" may take it where the tensors of a call are."""
        return self.devices is None or call.q.device.type in self.devices


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Bound | Tensor | None,
    *,
    bias: Tensor | Bias | None,
    scale: float | None,
    softcap: float | None,
    sink_logits: Tensor | None,
    dropout: float,
    q_pos: Positions,
    kv_pos: Positions,
    need: Need,
) -> Call:
    """Check the arguments of `attention` and settle them; see there what each means."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        _refuse_type(q=q, k=k, v=v)
    device = q.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        q, k, v = _cast(q, k, v)
    check_qkv(q, k, v)
    bound = None
    if isinstance(bias, Bias) and not isinstance(mask, Bound) and q_pos is None and kv_pos is None:
        first = k.shape[2] - q.shape[2]
        if first < 0:  # It reads positions, and these queries stand before every key.
            q_pos, kv_pos = first, 0
    if mask is not None or q_pos is not None or kv_pos is not None:
        bound = _settled(q, k, mask, q_pos, kv_pos)
        if not bound.clean:
            q, k, v = _zero_absent(q, k, v, bound)
    added: Tensor | PlacedBias | None = None
    if isinstance(bias, Bias):
        added = place_bias(bias, q, k, bound)
    elif bias is not None:
        added = check_bias(bias, q, k)
    if bound is not None and bound.is_plain and (need != "weights" or _is_usual(bound)):
        bound = None
    if sink_logits is not None:
        _check_sink_logits(sink_logits, q)
    if softcap is not None:
        softcap = _positive("softcap", softcap)
    if dropout != 0.0:
        dropout = check_probability("dropout", dropout)
    scale = q.shape[3] ** -0.5 if scale is None else _finite("scale", scale)
    return Call(q, k, v, bound, added, scale, softcap, sink_logits, dropout, need)


def _is_usual(bound: Bound) -> bool:
    """Whether its queries surely are the last of its keys, as where nobody gave positions."""
    q, kv = bound.q, bound.kv
    if isinstance(q.position, Tensor) or isinstance(kv.position, Tensor):
        return False
    return q.position - kv.position == kv.length - q.length


def _settled(
    q: Tensor, k: Tensor, mask: Mask | Bound | Tensor | None, q_pos: Positions, kv_pos: Positions
) -> Bound:
    if not isinstance(mask, Bound):
        return bind(
            mask, q.shape[0], q.shape[2], k.shape[2], q_pos=q_pos, kv_pos=kv_pos, device=q.device
        )
    mask.check_fits(q.shape[0], q.shape[2], k.shape[2], q_pos, kv_pos)
    return mask


def _zero_absent(q: Tensor, k: Tensor, v: Tensor, bound: Bound) -> tuple[Tensor, Tensor, Tensor]:
    # Weight 0 does not keep a NaN out (0 * NaN is NaN), so absent rows become 0 before any product.
    if bound.kv.absent is not None:
        absent = bound.kv.absent[:, None, :, None]
        k, v = torch.where(absent, 0.0, k), torch.where(absent, 0.0, v)
    if bound.q.absent is not None:
        q = torch.where(bound.q.absent[:, None, :, None], 0.0, q)
    return q, k, v


def _cast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    dtype = torch.get_autocast_dtype(q.device.type)
    return tuple(
        x.to(dtype) if x.dtype.is_floating_point and x.dtype != torch.float64 else x
        for x in (q, k, v)
    )


def _check_sink_logits(sink_logits: Tensor, q: Tensor) -> None:
    num_heads = q.shape[1]
    if not isinstance(sink_logits, Tensor) or tuple(sink_logits.shape) != (num_heads,):
        got = tuple(sink_logits.shape) if isinstance(sink_logits, Tensor) else sink_logits
        raise ShapeError(
            f"sink_logits must be a tensor ({num_heads},), one logit a query head; got "
            f"{got}. Expand one for all with .expand({num_heads})."
        )
    if not sink_logits.dtype.is_floating_point:
        raise DTypeError(
            f"sink_logits must be a floating-point tensor; got sink_logits={sink_logits.dtype}. "
            f"Convert it with .float()."
        )
    if sink_logits.device != q.device:
        raise DeviceError(
            f"sink_logits must be on the device of q, k and v, {q.device}; got "
            f"sink_logits={sink_logits.device}. Move it with .to(q.device)."
        )


def _finite(name: str, value: float) -> float:
    # A comparison, since a compiler may hand over a symbol, of which isfinite cannot be asked.
    if not is_number(value) or not abs(value) < math.inf:
        raise OptionError(
            f"{name} must be a finite number; got {name}={value!r}. Leave it out for "
            f"head_dim ** -0.5; a learned scale is multiplied into q."
        )
    return float(value)


def _positive(name: str, value: float) -> float:
    if not is_number(value) or not 0 < value < math.inf:
        raise OptionError(
            f"{name} must be a finite number above 0; got {name}={value!r}. Leave it out for "
            f"scores without a bound."
        )
    return float(value)


def _refuse_type(**tensors: object) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DTypeError(
                f"{name} must be a torch.Tensor; got {name}={type(tensor).__name__}. Convert it "
                f"with torch.as_tensor."
            )
