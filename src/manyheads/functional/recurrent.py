"""Attention as a recurrence: a matrix that forgets by gates and learns by the delta rule."""

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import DTypeError, MaskError, ShapeError
from manyheads.functional.attention import K, Output, Q, V
from manyheads.functional.precision import full_precision
from manyheads.functional.simple import Simple, simplify_call
from manyheads.masks import Mask

State = Float[Tensor, "batch num_kv_heads head_dim value_dim"]


def recurrent_attention(
    q: Q,
    k: K,
    v: V,
    mask: Mask,
    *,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    state: State | None = None,
) -> tuple[Output, State]:
    """Read from a matrix into which every token writes its value under its key.

    S <- diag(exp(decay_t)) S; S <- S + k_t (beta_t (v_t - Sᵀ k_t))ᵀ; out_t = scale * Sᵀ q_t.
    Without beta the value is written as it is: S <- S + k_t v_tᵀ. Nothing is normalised. By what is
    given this is linear attention, RetNet or GLA (decay), DeltaNet (beta) or Gated DeltaNet (both).

    It takes the tokens one by one, in time linear in the length; a state is of one size.

    Args:
        q: Queries, as many as keys.
        k: Keys; under the delta rule of norm 1, or the recurrence may grow without bound.
        v: Values.
        mask: ``Causal()``, or ``Causal() & Padding(...)``: padding neither writes nor forgets.
        decay: (batch or 1, num_kv_heads or 1, length, head_dim or 1), the log of what is kept of
            each row of S, 0 or less.
        beta: (batch or 1, num_kv_heads or 1, length, 1), how far the value under a key is moved
            towards the new one, 0 to 1.
        scale: Multiplies the output; None means ``head_dim ** -0.5``.
        state: What the call before returned; None begins at 0.

    Returns:
        The output in q's dtype, and the state in fp32 at least. A token with nothing but padding
        before and at it gets 0.

    Raises:
        MaskError: If the mask is any other.
        ShapeError: If a shape does not fit (and DTypeError, DeviceError likewise).

    Source:
        Yang et al. 2025, eq. 10 (arXiv:2412.06464); Schlag et al. 2021 (arXiv:2102.11174).

    Example:
        >>> import torch, manyheads as mh
        >>> from manyheads.functional import recurrent_attention
        >>> q, k, v = torch.randn(3, 1, 2, 6, 4)
        >>> whole, end = recurrent_attention(q, k, v, mh.Causal())
        >>> parts = zip(q.split(2, dim=2), k.split(2, dim=2), v.split(2, dim=2))
        >>> state, outputs = None, []
        >>> for part in parts:
        ...     output, state = recurrent_attention(*part, mh.Causal(), state=state)
        ...     outputs.append(output)
        >>> torch.allclose(torch.cat(outputs, dim=2), whole, atol=1e-6)
        True
    """
    call = simplify_call("recurrent_attention", q, k, v, mask, scale=scale)
    if not call.causal or call.q.shape[2] != call.k.shape[2]:
        raise MaskError(
            f"recurrent_attention must have Causal() and q_len = kv_len; got mask={mask!r}, q_len="
            f"{call.q.shape[2]}, kv_len={call.k.shape[2]}. Each token reads what was written up to "
            f"it: write recurrent_attention(q, k, v, Causal())."
        )
    batch, kv_heads, _, head_dim = call.k.shape
    decay = _fitted("decay", decay, call, (1, head_dim))
    beta = _fitted("beta", beta, call, (1,))
    shape = (batch, kv_heads, head_dim, call.v.shape[3])
    if state is not None and tuple(state.shape) != shape:
        raise ShapeError(
            f"state must be (batch, num_kv_heads, head_dim, value_dim) = {shape}; got shape "
            f"{tuple(state.shape)}. Hand over what the call before returned, or None to begin."
        )
    with full_precision(q.device):
        state = call.k.new_zeros(shape) if state is None else state.to(call.k.dtype)
        queries = (call.q * call.scale).unflatten(1, (kv_heads, call.q.shape[1] // kv_heads))
        output, state = _run(queries, call.k, call.v, decay, beta, state)
        return output.flatten(1, 2).to(call.dtype), state


def _run(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    batch, kv_heads, group, length, _ = q.shape
    outputs = [q.new_zeros(batch, kv_heads, group, 0, v.shape[3])]
    none = [None] * length
    for q_t, k_t, v_t, decay_t, beta_t in zip(
        q.unbind(3),
        k.unbind(2),
        v.unbind(2),
        none if decay is None else decay.exp().unbind(2),
        none if beta is None else beta.unbind(2),
        strict=True,
    ):
        if decay_t is not None:
            state = state * decay_t[..., None]
        if beta_t is not None:
            v_t = beta_t * (v_t - (k_t[:, :, None] @ state)[:, :, 0])
        state = state + k_t[..., :, None] * v_t[..., None, :]
        outputs.append((q_t @ state)[..., None, :])
    return torch.cat(outputs, dim=3), state


def _fitted(name: str, gate: Tensor | None, call: Simple, widths: tuple[int, ...]) -> Tensor | None:
    """A gate of four dimensions in full precision, which at absent tokens does nothing."""
    if gate is None:
        return None
    if not isinstance(gate, Tensor) or not gate.dtype.is_floating_point:
        kind = gate.dtype if isinstance(gate, Tensor) else type(gate).__name__
        raise DTypeError(
            f"{name} must be a floating-point tensor; got {name}={kind}. Give one number a token."
        )
    batch, heads, length, _ = call.k.shape
    shape = tuple(gate.shape)
    fits = (
        gate.ndim == 4
        and shape[0] in (1, batch)
        and shape[1] in (1, heads)
        and shape[2] == length
        and shape[3] in widths
    )
    if not fits:
        raise ShapeError(
            f"{name} must be (batch, num_kv_heads, length, {' or '.join(map(str, widths))}) = "
            f"({batch}, {heads}, {length}, ...), batch and heads 1 where they do not change; got "
            f"shape {shape}. For one number a head and token, write {name}[..., None]."
        )
    gate, absent = gate.to(call.k.dtype), call.absent_rows
    return gate if absent is None else gate.masked_fill(absent, 0.0)
