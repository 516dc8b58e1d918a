"""Nyström attention: the softmax matrix rebuilt from a few landmarks."""

import torch
from torch import Tensor

from manyheads.functional.attention import K, Output, Q, V
from manyheads.functional.precision import full_precision
from manyheads.functional.reference import softmax_rows
from manyheads.functional.simple import repeat_heads, simplify_call
from manyheads.masks import Mask
from manyheads.shapes import check_count


def nystrom_attention(
    q: Q,
    k: K,
    v: V,
    mask: Mask | None = None,
    *,
    landmarks: int = 64,
    iterations: int = 6,
    scale: float | None = None,
) -> Output:
    """Rebuild softmax attention from landmarks, in time and memory linear in the length.

    out = softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ (softmax(q̃ kᵀ) v), each times scale. The landmarks q̃ and
    k̃ are the means of equal runs of real tokens; the pseudo-inverse ⁺ is iterated. (The depthwise
    convolution over v that Nystromformer adds to it is a layer's part.)

    Where there are no more queries, or no more keys, than landmarks, this is exact attention, which
    then costs no more. Weights rebuilt like this need not be positive.

    Args:
        q: Queries.
        k: Keys; each serves ``num_heads / num_kv_heads`` query heads, neighbours first.
        v: Values.
        mask: None or ``Padding(...)``; where q_len = kv_len it says of the queries too which are
            real enough to make landmarks. A landmark averages past and future, so causality is
            refused.
        landmarks: How many, of queries and of keys.
        iterations: Of the pseudo-inverse. More come nearer to it, not always to attention: where
            landmarks are alike it is huge, and six keep it in bounds. (On random tokens rows then
            sum to 1 within 0.003.)
        scale: Multiplies q.k; None means ``head_dim ** -0.5``.

    Returns:
        The mixed values in q's dtype, summed in fp32 at least. Any q_len goes with any kv_len; 0
        where there is no key at all.

    Raises:
        MaskError: If the mask is any other.
        ShapeError: If a shape does not fit (and DTypeError, DeviceError likewise).
        OptionError: If landmarks or iterations are no count.

    Source:
        Xiong et al. 2021, eq. 4 to 14 (arXiv:2102.03902); iteration, Razavi et al. 2014.

    Example:
        >>> import torch, manyheads as mh
        >>> q, k, v = torch.randn(3, 1, 2, 100, 16)
        >>> mh.nystrom_attention(q, k, v, landmarks=16).shape
        torch.Size([1, 2, 100, 16])
        >>> few = mh.nystrom_attention(q, k, v, landmarks=100)
        >>> torch.allclose(few, mh.attention(q, k, v), atol=1e-6)
        True
    """
    landmarks = check_count("landmarks", landmarks)
    iterations = check_count("iterations", iterations)
    why = "Each of its landmarks averages over the sequence, the future too"
    call = simplify_call("nystrom_attention", q, k, v, mask, scale=scale, never_causal=why)
    q_len, kv_len, heads = q.shape[2], k.shape[2], q.shape[1]
    with full_precision(q.device):
        queries = call.q * call.scale
        keys, values = repeat_heads(call.k, heads), repeat_heads(call.v, heads)
        hidden = None if call.absent is None else call.absent[:, None, None, :]
        if min(q_len, kv_len) <= landmarks:
            return (_softmax(queries, keys, hidden) @ values).to(call.dtype)
        some_k, no_k = _landmarks(keys, call.absent, landmarks)
        some_q, no_q = _landmarks(queries, call.absent if q_len == kv_len else None, landmarks)
        inner = _softmax(some_q, some_k, no_k[:, None, None, :])
        # A landmark of no token is no query either.
        inner = inner.masked_fill(no_q[:, None, :, None], 0.0)
        right = _softmax(some_q, keys, hidden) @ values
        left = _softmax(queries, some_k, no_k[:, None, None, :])
        return (left @ (pseudo_inverse(inner, iterations) @ right)).to(call.dtype)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """The Moore-Penrose inverse by an iteration of third order, which is products alone.

    z <- z (13 - a z (15 - a z (7 - a z))) / 4, from z = aᵀ / (largest row sum * largest column
    sum). Rows and columns of 0 stay 0. Each matrix is scaled by its own sums, so that no batch
    neighbour changes it.

    Args:
        matrix: (..., rows, columns), 0 or more.
        iterations: How many.

    Source:
        Xiong et al. 2021, eq. 11 and 12 (arXiv:2102.03902).

    Example:
        >>> matrix = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
        >>> pseudo_inverse(matrix, 6) @ matrix
        tensor([[1., 0.],
                [0., 1.]])
    """
    rows, columns = (matrix.sum(dim=dim).amax(dim=-1)[..., None, None] for dim in (-1, -2))
    size = rows * columns
    z = matrix.mT / size.masked_fill(size == 0, 1.0)
    for _ in range(iterations):
        a_z = matrix @ z
        z = (13 * z - z @ (15 * a_z - a_z @ (7 * a_z - a_z @ a_z))) / 4
    return z


def _softmax(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = q @ k.mT
    return softmax_rows(scores if hidden is None else scores.masked_fill(hidden, -torch.inf))[0]


def _landmarks(x: Tensor, absent: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """The means of equal runs of real tokens, and which of them are means of none.

    Args:
        x: (batch, heads, length, head_dim).
        absent: bool (batch or 1, length), True where there is no token; None if all are there.
        count: How many runs.
    """
    batch, heads, length, width = x.shape
    if absent is None:
        absent = torch.zeros(1, length, dtype=torch.bool, device=x.device)
    real = ~absent
    rank, total = real.cumsum(dim=1) - 1, real.sum(dim=1, keepdim=True)
    # Run r holds the tokens of rank r * total / count and on; absent ones go to a run of their own.
    run = (rank * count // total.clamp(min=1)).masked_fill(absent, count)
    sizes = x.new_zeros(len(run), count + 1).scatter_add(1, run, x.new_ones(run.shape))[:, :count]
    places = run[:, None, :, None].expand(batch, heads, length, width)
    sums = x.new_zeros(batch, heads, count + 1, width).scatter_add(2, places, x)[:, :, :count]
    return sums / sizes.clamp(min=1)[:, None, :, None], sizes == 0
