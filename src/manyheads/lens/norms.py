"""Weights with what they weigh: a key with a small value gives little, however much it is read."""

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.functional import Statistics
from manyheads.lens.checks import check_call, check_tensor


def value_norms(
    call: Statistics, out_proj: Float[Tensor, "d_model width"] | None = None
) -> Float[Tensor, "batch num_heads kv_len"]:
    """How long the vector is that each head reads from each key.

    Args:
        call: The call.
        out_proj: The weight of the projection behind the heads, (d_model, num_heads * value_dim),
            through which each value goes to the stream; None measures the values themselves.

    Returns:
        From 0; a key of norm 0 gives nothing to whoever reads it. It does not hang on the weights:
        a uniform head has the same.

    Raises:
        ShapeError: If the projection is not that of these heads.

    Source:
        Kobayashi et al. 2020 (arXiv:2004.10102), equation 3.

    Example:
        >>> import manyheads as mh
        >>> q = k = torch.zeros(1, 1, 2, 4)
        >>> v = torch.tensor([[[[3.0, 4.0], [0.0, 0.0]]]])
        >>> value_norms(mh.statistics(q, k, v))
        tensor([[[5., 0.]]])
    """
    check_call(call)
    if out_proj is not None:
        check_tensor("out_proj", out_proj)
    v, num_heads = call.call.v.detach(), call.call.q.shape[1]
    of_heads = v.repeat_interleave(num_heads // v.shape[1], dim=1)
    if out_proj is None:
        return of_heads.norm(dim=-1)
    if out_proj.ndim != 2 or out_proj.shape[1] != num_heads * v.shape[3]:
        raise ShapeError(
            f"out_proj must be (d_model, {num_heads * v.shape[3]}) for {num_heads} heads of width "
            f"{v.shape[3]}; got shape {tuple(out_proj.shape)}. Give layer.out_proj.weight."
        )
    each_head = out_proj.detach().float().unflatten(1, (num_heads, -1)).transpose(0, 1)
    # The norm of W v is that of R v, where W = Q R with R small.
    triangles = torch.linalg.qr(each_head).R
    return torch.einsum("hij,bhkj->bhki", triangles, of_heads.float()).norm(dim=-1)


def weighted_norms(
    call: Statistics,
    out_proj: Float[Tensor, "d_model width"] | None = None,
    *,
    rows: slice | int | None = None,
) -> Float[Tensor, "batch num_heads rows kv_len"]:
    """How long the vector is that each query receives from each key: weight times value norm.

    From 0. A uniform head has the keys' norms over their number. Sinks, which are read a lot and
    give little, vanish here.

    Args:
        call: The call.
        out_proj: See `value_norms`.
        rows: Which queries; None for all.

    Source:
        Kobayashi et al. 2020 (arXiv:2004.10102), equation 4.

    Example:
        >>> import manyheads as mh
        >>> q = k = torch.zeros(1, 1, 2, 4)
        >>> v = torch.tensor([[[[3.0, 4.0], [0.0, 0.0]]]])
        >>> weighted_norms(mh.statistics(q, k, v), rows=0)
        tensor([[[[2.5000, 0.0000]]]])
    """
    check_call(call)
    return call.weights(rows) * value_norms(call, out_proj)[:, :, None]
