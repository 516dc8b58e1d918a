"""Attention weighted by its gradient, followed down to the tokens that went in."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.functional.pieces import SCORES
from manyheads.lens.checks import check_model, check_number
from manyheads.lens.importance import slopes
from manyheads.lens.rollout import check_stack, one_hot
from manyheads.probe import AttentionCall, watch


def relevance(
    model: nn.Module,
    score: Callable[[], Float[Tensor, ""]],
    *,
    queries: Sequence[int] | None = None,
    layers: str | Sequence[str] | None = None,
) -> Float[Tensor, "batch queries length"]:
    """How relevant each input token is for a score of the model: a class of a picture, a word.

    In each layer the weights are multiplied by the score's gradient with respect to them, what
    speaks against it is dropped, heads are averaged, and the layers are multiplied with the
    residual stream. From 0, the query itself from 1; uniform heads still differ where their
    gradients do. For few queries no memory of length x length is needed.

    Args:
        model: A stack of self-attention that `probe.watch` sees.
        score: Runs the model and gives the number to explain: the logit of a class, added up over
            the sequences.
        queries: Whose rows: [0] for a class token, [-1] for the next word; None for all.
        layers: Which layers to follow; None for all.

    Raises:
        ProbeError: If gradients do not reach the layers.
        ShapeError: If the layers are not self-attention over the same tokens.

    Source:
        Chefer et al. 2021b (arXiv:2103.15679), equations 5 and 6.

    Example:
        >>> import manyheads as mh
        >>> layer, x = mh.MultiHeadAttention(16, 2), torch.randn(1, 9, 16)
        >>> relevance(layer, lambda: layer(x)[:, 0].sum(), queries=[0]).shape
        torch.Size([1, 1, 9])
    """
    check_model(model)
    with torch.enable_grad(), watch(model, layers=layers, each=lambda call: call) as calls:
        total = check_number("score", score)
    _, of_outputs = slopes(total, calls)
    batch, length = check_stack(calls)
    carried = one_hot(queries, length, calls[0].call.q)[None].expand(batch, -1, -1)
    for call, gradient in zip(reversed(calls), reversed(of_outputs), strict=True):
        carried = carried + _carried(call, gradient, carried)
    return carried


@torch.no_grad()
def _carried(call: AttentionCall, gradient: Tensor, amounts: Tensor) -> Tensor:
    """Amounts at the queries, moved to the keys by the mean of (gradient x weight) above 0.

    The gradient of a weight is that of the query's output times the key's value.
    """
    batch, heads, q_len, _ = call.call.q.shape
    v = call.call.v.to(amounts.dtype)
    v = v.repeat_interleave(heads // v.shape[1], dim=1)
    moved = torch.zeros_like(amounts)
    step = max(1, SCORES // (batch * heads * q_len))
    for first in range(0, q_len, step):
        rows = slice(first, min(first + step, q_len))
        of_weights = gradient[:, :, rows].to(v.dtype) @ v.mT
        relevant = (of_weights * call.weights(rows)).clamp(min=0.0).mean(dim=1)
        moved += amounts[:, :, rows] @ relevant
    return moved
