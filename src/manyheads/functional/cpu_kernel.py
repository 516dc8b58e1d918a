"""torch's fused kernel for the CPU, with a log-sum-exp that has a gradient."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.functional.once import once_differentiable

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of each row of scores, in memory linear in the length.

    Args:
        q: (batch, num_heads, q_len, head_dim).
        k: (batch, num_kv_heads, kv_len, head_dim).
        v: As k.
        mask: Added to the scores; 0 or -inf, and perhaps a bias.
        causal: Whether the i-th query sees just the first i keys.
        scale: Multiplies the scores.
    """
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if learns:
        output, lse = _WithLse.apply(q, k, v, mask, causal, scale)
    else:
        output, lse = _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return output, _without_empty(lse, mask)


def forward_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """`attend_with_lse` for who writes the gradient himself, with `backward_with_lse`."""
    output, lse = _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return output, _without_empty(lse, mask)


def backward_with_lse(
    d_output: Tensor,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    output: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, from those of the output and of the log-sum-exp.

    ``lse`` must be finite where a row sees nobody, as the kernel gives it.
    """
    width = q.shape[3]
    if d_lse is not None:
        # d_scores = weights * (d_weights - sum(d_output * output) + d_lse), of which the kernel
        # has all but the last. Two more columns of the output bring it into the sum; v has
        # zeros there. Two, so that half precision keeps the digits of both halves.
        high = d_lse.to(output.dtype)
        low = (d_lse - high).to(output.dtype)
        output = torch.cat((output, -high[..., None], -low[..., None]), dim=-1)
        d_output = F.pad(d_output, (0, 2), value=1.0)
        q, k, v = F.pad(q, (0, 2)), F.pad(k, (0, 2)), F.pad(v, (0, 2))
    d_q, d_k, d_v = _backward(
        d_output, q, k, v, output, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
    return d_q[..., :width], d_k[..., :width], d_v[..., :width]


def _without_empty(lse: Tensor, mask: Tensor | None) -> Tensor:
    # The kernel says 0 for a row that sees nobody.
    return lse if mask is None else lse.masked_fill((mask == -torch.inf).all(dim=-1), -torch.inf)


class _WithLse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        output, lse = _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        ctx.save_for_backward(q, k, v, mask, output, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, mask, output, lse = ctx.saved_tensors
        if d_output is None:
            d_output = torch.zeros_like(output)
        gradients = backward_with_lse(
            d_output, d_lse, q, k, v, mask, output, lse, causal=ctx.causal, scale=ctx.scale
        )
        return *gradients, None, None, None
