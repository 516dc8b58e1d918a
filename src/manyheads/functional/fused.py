"""torch's fused attention, wherever it can serve without a hidden quadratic path."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.functional.bias import PlacedBias
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.cpu_kernel import attend_with_lse
from manyheads.functional.fold import without_object
from manyheads.functional.lowering import is_mapped, lower, needs_lse, skips_future, written_shape
from manyheads.functional.precision import full_precision
from manyheads.shapes import values_are_cheap

_HALVES = (torch.bfloat16, torch.float16)
_LARGE = 128.0


def _refusals(call: Call) -> Iterator[Refusal]:
    if call.need == "weights":
        yield Refusal("the kernel never holds the weights", "call attention instead")
    if call.softcap is not None:
        yield Refusal("the kernel has no softcap", "leave softcap out")
    if call.dropout and call.q.device.type != "cuda":
        yield Refusal("dropout takes torch's quadratic path here", "set dropout=0")
    if call.bias_needs_grad:
        yield Refusal("a bias with gradient takes torch's quadratic path", "detach the bias")
    elif _loses_digits(call):
        why = f"its gradient is wrong beside a bias beyond {_LARGE:.0f}"
        yield Refusal(why, "say by a mask what the bias hides")
    if needs_lse(call) and call.q.device.type not in ("cpu", "meta"):
        yield Refusal("only the CPU kernel gives its log-sum-exp", "leave lse and sink_logits out")
    if needs_lse(call) and is_mapped():
        yield Refusal("its log-sum-exp knows no torch.func transform", "call it outside of them")
    if needs_lse(call) and torch.compiler.is_compiling() and call.needs_grad:
        yield Refusal("its log-sum-exp has no gradient in compiled code", "compile without it")
    if not (call.q.numel() and call.k.numel() and call.v.numel()):
        yield Refusal("the kernel needs at least one of everything", "give it some tokens")


def _loses_digits(call: Call) -> bool:
    """Whether gradients would come out wrong beside a bias of large numbers, such as finfo.min.

    The kernel's backward knows of a row its log-sum-exp alone, and that has no digits left for the
    number of keys if all that a row sees is large. Only values tell, so compiled code is trusted.
    """
    bias = call.bias
    if not (isinstance(bias, Tensor) and call.needs_grad and bias.numel()):
        return False
    if not values_are_cheap(bias):
        return False
    # Whom a row sees is known here if there is no mask; otherwise it might be any of its keys.
    reach = bias.amax(dim=-1) if call.mask is None else bias
    low, high = reach.aminmax()
    if low == -torch.inf:  # hides, and is no number to be added
        low, high = reach.masked_fill(reach == -torch.inf, 0.0).aminmax()
    return not (float(low) >= -_LARGE and float(high) <= _LARGE)  # so NaN is large


def _run(call: Call) -> Result:
    dtype = call.q.dtype
    if call.bias is None and call.scale > 0 and dtype not in _HALVES:
        # The common call, where microseconds count.
        return _attend(call, None)
    call, lacking = without_object(widened(call))  # first, for a bias may read q and the scale
    if call.scale <= 0:
        # The kernel hides the future by -inf before it scales, which would make inf or NaN of it.
        sign = -1.0 if call.scale < 0 else 0.0
        call = call._replace(q=call.q * sign, scale=abs(call.scale) or 1.0)
    bias = call.written_bias()
    if call.q.dtype == dtype and (bias is None or bias.dtype == dtype):
        return _attend(call, lacking)
    # Under autocast torch would round all of them to one dtype.
    with full_precision(call.q.device):
        result = _attend(call, lacking)
    return result._replace(output=result.output.to(dtype))


def _attend(call: Call, lacking: Tensor | None) -> Result:
    width = call.v.shape[3]
    mask, causal = lower(call)
    q, k, v = fit(call.q, call.k, call.v)
    packs = not causal and _gains_by_packing(q, k, mask)
    if packs:
        q, mask = _pack(q, k.shape[1], mask)
    if needs_lse(call):
        output, lse = attend_with_lse(q, k, v, mask, causal=causal, scale=call.scale)
        if packs:
            output, lse = output.reshape(*call.q.shape[:3], -1), lse.reshape(call.q.shape[:3])
        lse = lse if lacking is None else lse + lacking
        return Result(with_sinks(output[..., :width], lse, call.sink_logits), lse=lse)
    if causal and mask is not None:
        output, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, attn_mask=mask, scale=call.scale
        )
    else:
        output = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=call.dropout,
            is_causal=causal,
            scale=call.scale,
            # A bool also where shapes are symbols, in code compiled for any of them.
            enable_gqa=True if q.shape[1] != k.shape[1] else False,  # noqa: SIM210
        )
    if packs:
        output = output.reshape(*call.q.shape[:3], -1)
    return Result(output if output.shape[3] == width else output[..., :width])


def _gains_by_packing(q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
    """Whether the queries of heads that share keys may stand as further rows beside them.

    The kernel then reads the keys of a group once, and its products have more than one row.
    """
    if q.shape[1] == k.shape[1] or q.device.type != "cpu":
        return False
    if mask is None:
        return True
    return mask.shape[2] == 1 and (mask.shape[1] == 1 or q.shape[2] == 1)


def _pack(q: Tensor, kv_heads: int, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    # (batch, num_heads, q_len, head_dim) -> (batch, kv_heads, group * q_len, head_dim)
    packed = q.reshape(q.shape[0], kv_heads, -1, q.shape[3])
    if mask is not None and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], kv_heads, -1, mask.shape[3])
    return packed, mask


def widened(call: Call) -> Call:
    """The call in fp32 where the processor is slow in less."""
    if not _is_slow(call):
        return call
    return call._replace(q=call.q.float(), k=call.k.float(), v=call.v.float())


def _is_slow(call: Call) -> bool:
    # A processor without 16-bit arithmetic: measured, the kernel's backward takes 4 to 6 times
    # as long in bf16 as in fp32 and its forward as long, in fp16 all of it longer. Without
    # gradients too, so that evaluation equals training to the bit; but for steps of decoding.
    halves = call.q.dtype in _HALVES and call.q.device.type == "cpu"
    if not halves or torch.compiler.is_compiling():
        return False
    if call.q.shape[2] == 1 and call.q.dtype == torch.bfloat16 and not call.needs_grad:
        return False  # a step of decoding: to widen all keys costs as much as to read them
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


def fit(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one width, without gaps.

    Others would send torch to its quadratic path; zeros added to q and k leave scores as they are,
    and zeros added to v are cut off again.
    """
    missing = v.shape[3] - q.shape[3]
    if missing > 0:
        q, k = F.pad(q, (0, missing)), F.pad(k, (0, missing))
    elif missing < 0:
        v = F.pad(v, (0, -missing))
    if q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        return q, k, v
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return q, k, v


def with_sinks(output: Tensor, lse: Tensor, sink_logits: Tensor | None) -> Tensor:
    """The output, less what sink logits take."""
    if sink_logits is None:
        return output
    # A sink takes exp(sink) / (exp(sink) + exp(lse)) of the weight.
    left = torch.sigmoid(lse - sink_logits.to(lse.dtype)[:, None])
    return output * left[..., None].to(output.dtype)


def _extra_bytes(call: Call) -> int:
    extra = 0
    if _is_slow(call):
        extra += 4 * (call.q.numel() + call.k.numel() + call.v.numel())
    plain = call
    if isinstance(call.bias, PlacedBias) and _folds(call, call.bias):
        plain, _ = without_object(call)
    shape = written_shape(plain)
    if shape is not None:
        extra += math.prod(shape) * (call.q.element_size() + 1)  # and the bool of which it is made
    fitted = fit(plain.q, plain.k, plain.v)
    for before, after in zip((call.q, call.k, call.v), fitted, strict=True):
        if after is not before:
            extra += after.numel() * after.element_size()
    return extra


def _folds(call: Call, bias: PlacedBias) -> bool:
    return bias.fold(call.q, call.k, call.mask, call.scale) is not None


def _quadratic(call: Call) -> bool:
    if 1 in (call.q.shape[2], call.k.shape[2]):
        return False
    mask, bias = call.mask, call.bias
    if isinstance(bias, PlacedBias):
        if not _folds(call, bias):
            return True
        bias = None
    if mask is None or (bias is None and mask.is_causal):
        return False  # A bias of all pairs was made by the caller.
    causal = skips_future(call, mask, bias)
    by_query = bias is not None and bias.shape[2] > 1
    return by_query or not mask.has_no_pairs(past_only=causal)


FUSED = Backend(
    "fused",
    "torch's scaled_dot_product_attention: never writes the scores out",
    _refusals,
    _run,
    _extra_bytes,
    quadratic=_quadratic,
)
