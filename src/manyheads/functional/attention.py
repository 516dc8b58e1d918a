"""The front door: every attention of this package is one call of these functions."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, is_named
from manyheads.functional.call import prepare
from manyheads.functional.choose import Auto
from manyheads.functional.reference import (
    capped_scores,
    masked_scores,
    raw_scores,
    softmax_scores,
)
from manyheads.functional.seam import run
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias
from manyheads.shapes import Positions

Q = Float[Tensor, "batch num_heads q_len head_dim"]
K = Float[Tensor, "batch num_kv_heads kv_len head_dim"]
V = Float[Tensor, "batch num_kv_heads kv_len value_dim"]
Output = Float[Tensor, "batch num_heads q_len value_dim"]
Weights = Float[Tensor, "batch num_heads q_len kv_len"]


def attention(
    q: Q,
    k: K,
    v: V,
    mask: Mask | Bound | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout: float = 0.0,
    q_pos: Positions = None,
    kv_pos: Positions = None,
    backend: str | Auto = "auto",
) -> Output:
    """Mix, for each query, the values it may see, by the softmax of its scores.

    The order is softcap(scale * q.k) + bias, then the mask, then sink logits, then softmax.

    Args:
        q: Queries.
        k: Keys; each serves ``num_heads / num_kv_heads`` query heads, neighbours first.
        v: Values.
        mask: Who may see whom: a `Mask`, or a bool tensor (q_len, kv_len) or (batch, heads or 1,
            q_len, kv_len) in which True means may see. None lets everyone see everyone.
        bias: Added to the scores: a tensor (q_len, kv_len) or of four dimensions, 1 where it does
            not change; or an object that reads positions, such as `ALiBi(num_heads)`.
        scale: Multiplies the scores; None means ``head_dim ** -0.5``.
        softcap: Bounds scores smoothly to plus and minus this number.
        sink_logits: (num_heads,), learned logits that take weight and give nothing.
        dropout: The share of weights to drop, 0 to 1; a function knows no eval mode.
        q_pos: Positions of the queries, in tokens: an int (first of a run) or a tensor (q_len,)
            or (batch, q_len); below 0 = no token. None makes them the last of the keys.
        kv_pos: Positions of the keys; give both or neither.
        backend: "auto", or the name of one in `BACKENDS`: a choice of speed, never of meaning; or
            `Auto(never_quadratic=True)`, which raises rather than make a tensor of q_len x kv_len.

    Returns:
        The mixed values in q's dtype. A query that sees nobody gets 0, with gradient 0.

    Raises:
        ShapeError: If a shape does not fit (and DTypeError, DeviceError likewise).
        MaskError: If the mask does not fit the tokens, or is ambiguous.
        PositionError: If positions do not fit the tokens.
        OptionError: If a number is out of range.
        BackendError: If a named backend cannot do the call.

    Source:
        Vaswani et al. 2017, eq. 1 (arXiv:1706.03762); grouped heads, Ainslie et al. 2023
        (arXiv:2305.13245); softcap, Gemma Team 2024 (arXiv:2408.00118).

    Example:
        >>> import torch, manyheads as mh
        >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
        >>> mh.attention(q, k, v, mh.Causal() & mh.Window(4)).shape
        torch.Size([2, 8, 5, 16])
    """
    call = prepare(
        q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
        dropout=dropout, q_pos=q_pos, kv_pos=kv_pos, need="output",
    )  # fmt: skip
    return run(call, backend).output


def attention_with_weights(
    q: Q,
    k: K,
    v: V,
    mask: Mask | Bound | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout: float = 0.0,
    q_pos: Positions = None,
    kv_pos: Positions = None,
    backend: str | Auto = "auto",
) -> tuple[Output, Weights]:
    """Do `attention` and return the weights too, one map for each head.

    Arguments and errors are those of `attention`.

    Returns:
        The output, and the weights before dropout: each row sums to 1, to 1 less the sink's share
        with sink logits, to 0 if the query sees nobody.

    Example:
        >>> import torch, manyheads as mh
        >>> q = k = v = torch.zeros(1, 1, 2, 4)
        >>> mh.attention_with_weights(q, k, v, mh.Causal())[1]
        tensor([[[[1.0000, 0.0000],
                  [0.5000, 0.5000]]]])
    """
    call = prepare(
        q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
        dropout=dropout, q_pos=q_pos, kv_pos=kv_pos, need="weights",
    )  # fmt: skip
    result = run(call, backend)
    assert result.weights is not None
    return result.output, result.weights


def attention_with_lse(
    q: Q,
    k: K,
    v: V,
    mask: Mask | Bound | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout: float = 0.0,
    q_pos: Positions = None,
    kv_pos: Positions = None,
    backend: str | Auto = "auto",
) -> tuple[Output, Float[Tensor, "batch num_heads q_len"]]:
    """Do `attention` and return the log-sum-exp of each row of scores too.

    Arguments and errors are those of `attention`.

    Returns:
        The output, and log-sum-exp in fp32 at least, sink logits left out; -inf, with gradient 0,
        for a query that sees nobody.

    Example:
        >>> import torch, manyheads as mh
        >>> q = k = v = torch.zeros(1, 1, 2, 4)
        >>> mh.attention_with_lse(q, k, v)[1].exp()
        tensor([[[2., 2.]]])
    """
    call = prepare(
        q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
        dropout=dropout, q_pos=q_pos, kv_pos=kv_pos, need="lse",
    )  # fmt: skip
    result = run(call, backend)
    assert result.lse is not None
    return result.output, result.lse


STAGES = {
    "raw": raw_scores,
    "capped": capped_scores,
    "masked": masked_scores,
    "softmax": lambda call: softmax_scores(call)[0],
}


def attention_scores(
    q: Q,
    k: K,
    v: V,
    mask: Mask | Bound | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    q_pos: Positions = None,
    kv_pos: Positions = None,
    stage: Literal["raw", "capped", "masked", "softmax"] = "masked",
) -> Weights:
    """Write out the scores of `attention` at one stage of its arithmetic.

    Arguments and errors are those of `attention`.

    Args:
        q: See `attention`.
        k: See `attention`.
        v: See `attention`.
        mask: See `attention`.
        bias: See `attention`.
        scale: See `attention`.
        softcap: See `attention`.
        sink_logits: See `attention`.
        q_pos: See `attention`.
        kv_pos: See `attention`.
        stage: "raw" is scale * q.k; "capped" has the softcap; "masked" has bias and mask too (-inf
            where a query may not see); "softmax" are the weights.

    Returns:
        In fp32 at least.

    Example:
        >>> import torch, manyheads as mh
        >>> q = k = v = torch.ones(1, 1, 2, 4)
        >>> mh.attention_scores(q, k, v, mh.Causal(), stage="masked")
        tensor([[[[2., -inf],
                  [2., 2.]]]])
    """
    if not is_named(stage, STAGES):
        raise OptionError(
            f"stage must be one of {', '.join(STAGES)}; got stage={stage!r}. They follow one "
            f"another in this order."
        )
    call = prepare(
        q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
        dropout=0.0, q_pos=q_pos, kv_pos=kv_pos, need="weights",
    )  # fmt: skip
    return STAGES[stage](call)
