"""A mask and a bias as torch's fused kernels take them."""

import torch
from torch import Tensor

from manyheads.functional.call import Call
from manyheads.functional.window import window
from manyheads.masks import Bound
from manyheads.shapes import values_are_cheap


def lower(call: Call) -> tuple[Tensor | None, bool]:
    """The mask and bias of a call as torch's ``attn_mask`` and ``is_causal``.

    It looks at the structure of the rule and at the kind of the positions, never at values.
    """
    mask, bias, heads = call.mask, call.written_bias(), call.q.shape[1]
    if bias is not None:
        bias = _as_added(bias, call.q.dtype)
    if mask is None:
        return bias, False
    if bias is None and mask.is_causal:
        return None, True
    # The kernel then skips the blocks of the future, and the rest of a mask is seldom more than a
    # row of keys.
    causal = skips_future(call, mask, bias)
    if bias is None:
        return mask.additive(heads, call.q.dtype, past_only=causal), causal
    if not (causal and mask.is_causal):
        bias = bias.masked_fill(~mask.dense(heads, past_only=causal), -torch.inf)
    if causal and bias.shape[2] > 1:
        bias = bias.tril()  # the kernel adds it to the -inf of the future, which a NaN would spoil
    return bias, causal


def written_shape(call: Call) -> tuple[int, ...] | None:
    """The shape of what `lower` writes out, which may be too large to be; None if nothing is.

    A corner of the pairs tells along which axes anything changes.
    """
    mask, bias = call.mask, call.bias
    if bias is None and (mask is None or mask.is_causal):
        return None
    if isinstance(bias, Tensor) and _as_added(bias, call.q.dtype) is bias:
        one_row = bias.shape[2] == 1
        if mask is None or (mask.is_causal and one_row and skips_future(call, mask, bias)):
            return None
    whole = (call.q.shape[2], call.k.shape[2])
    corner = window(call, slice(None), *(slice(0, min(2, length)) for length in whole))
    written = corner.written_bias()
    shapes = [] if written is None else [written.shape]
    if mask is not None and corner.mask is not None:
        causal = skips_future(call, mask, bias if isinstance(bias, Tensor) else written)
        if written is None or not (causal and mask.is_causal):
            shapes.append(corner.mask.dense(call.q.shape[1], past_only=causal).shape)
    batch, heads, *lengths = torch.broadcast_shapes(*shapes)
    full = (n if size > 1 else 1 for size, n in zip(lengths, whole, strict=True))
    return batch, heads, *full


def _as_added(bias: Tensor, dtype: torch.dtype) -> Tensor:
    # Half precision takes a bias in fp32; float64 takes it without a word and answers 0.
    return bias if bias.dtype == dtype else bias.to(torch.promote_types(dtype, torch.float32))


def skips_future(call: Call, mask: Bound, bias: Tensor | None) -> bool:
    """Whether causality goes to the kernel beside a mask, which its CPU kernel allows, no door.

    Its log-sum-exp is wrong for rows that only both of them empty; it maps over no further axis.
    """
    if call.q.device.type != "cpu" or needs_lse(call) or is_mapped():
        return False
    if not mask.is_below_diagonal or bias is None or bias.shape[2] > 1:
        return mask.is_below_diagonal
    # One row of a bias for all queries: NaN and inf in it would spoil rows that do not see them.
    return values_are_cheap(bias) and bool((bias < torch.inf).all())


def needs_lse(call: Call) -> bool:
    """Whether the output alone does not do."""
    return call.need == "lse" or call.sink_logits is not None


def is_mapped() -> bool:
    """Whether a torch.func transform is at work."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
