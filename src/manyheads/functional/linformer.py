"""Linformer: keys and values projected along the length to a fixed number of slots."""

from jaxtyping import Float
from torch import Tensor

from manyheads.errors import DeviceError, DTypeError, ShapeError
from manyheads.functional.attention import K, Output, Q, V
from manyheads.functional.precision import full_precision
from manyheads.functional.reference import softmax_rows
from manyheads.functional.simple import repeat_heads, simplify_call
from manyheads.masks import Mask

Projection = Float[Tensor, "slots length"] | Float[Tensor, "num_kv_heads slots length"]


def linformer_attention(
    q: Q,
    k: K,
    v: V,
    mask: Mask | None = None,
    *,
    key_projection: Projection,
    value_projection: Projection | None = None,
    scale: float | None = None,
) -> Output:
    """Attend to a few learned mixtures of the keys instead of the keys.

    out = softmax(scale * q (E k)ᵀ) (F v): the weights are over the rows of E and F, the slots, so
    time and memory are linear in the length. E and F belong to places in the sequence, up to the
    longest that they were made for.

    An absent token adds nothing to any slot, and a sequence gives what it would give without its
    trailing padding.

    Args:
        q: Queries.
        k: Keys; each serves ``num_heads / num_kv_heads`` query heads, neighbours first.
        v: Values.
        mask: None or ``Padding(...)``. A slot mixes past and future, so causality is refused.
        key_projection: E, (slots, length) or (num_kv_heads, slots, length) with length at least
            kv_len; of a longer one the first kv_len columns are used.
        value_projection: F; None means E.
        scale: Multiplies q.k; None means ``head_dim ** -0.5``.

    Returns:
        The mixed values in q's dtype, summed in fp32 at least. Any q_len goes with any kv_len; 0
        where there is no key at all.

    Raises:
        MaskError: If the mask is any other.
        ShapeError: If a shape does not fit (and DTypeError, DeviceError likewise).

    Source:
        Wang et al. 2020, eq. 7 (arXiv:2006.04768).

    Example:
        >>> import torch, manyheads as mh
        >>> q, k, v = torch.randn(3, 1, 2, 50, 16)
        >>> mh.linformer_attention(q, k, v, key_projection=torch.randn(8, 64) / 8).shape
        torch.Size([1, 2, 50, 16])
    """
    value_projection = key_projection if value_projection is None else value_projection
    why = "Each of its slots mixes the whole sequence, the future too"
    call = simplify_call("linformer_attention", q, k, v, mask, scale=scale, never_causal=why)
    e = _columns("key_projection", key_projection, call.k)
    f = _columns("value_projection", value_projection, call.v)
    if e.shape[-2] != f.shape[-2]:
        raise ShapeError(
            f"key_projection and value_projection must have as many slots; got {e.shape[-2]} and "
            f"{f.shape[-2]}. A slot is one key and one value."
        )
    with full_precision(q.device):
        k, v = (repeat_heads(x, q.shape[1]) for x in (e @ call.k, f @ call.v))
        weights, _ = softmax_rows(call.q @ k.mT * call.scale)
        return (weights @ v).to(call.dtype)


def _columns(name: str, projection: Tensor, x: Tensor) -> Tensor:
    """The columns of a projection that belong to the tokens of x, in x's dtype."""
    if not isinstance(projection, Tensor) or not projection.dtype.is_floating_point:
        kind = projection.dtype if isinstance(projection, Tensor) else type(projection).__name__
        raise DTypeError(
            f"{name} must be a floating-point tensor; got {name}={kind}. It is learned, as the "
            f"weight of an nn.Linear(length, slots) is."
        )
    heads, length = x.shape[1], x.shape[2]
    shape = tuple(projection.shape)
    fits = projection.ndim == 2 or (projection.ndim == 3 and shape[0] in (1, heads))
    if not fits or shape[-1] < length:
        raise ShapeError(
            f"{name} must be (slots, length) or (num_kv_heads={heads}, slots, length), with length "
            f"at least kv_len={length}; got shape {shape}. Make it for the longest sequence there "
            f"will be."
        )
    if projection.device != x.device:
        raise DeviceError(
            f"{name} must be on the device of q, k and v, {x.device}; got {name}="
            f"{projection.device}. Move it with .to(q.device)."
        )
    return projection[..., :length].to(x.dtype)
