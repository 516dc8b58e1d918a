"""How much a model relies on each head, by the gradient of its loss or by leaving the head out."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import ProbeError
from manyheads.lens.checks import check_heads, check_model, check_number
from manyheads.lens.without import Head, without
from manyheads.probe import AttentionCall, watch
from manyheads.probe.mixed import Mixed


def importance_by_gradient(
    model: nn.Module, loss: Callable[[], Float[Tensor, ""]]
) -> dict[str, Float[Tensor, " heads"]]:
    """By how much the loss would change if each head gave a little more or less.

    The absolute gradient of the loss with respect to a gate of 1 on each head's output, added up
    over the sequences; with a loss that is a mean over them, their mean. From 0, in units of the
    loss; only the order of heads has a meaning. It asks what a head gives and not where it looks,
    so that even heads count by their values; heads that are all alike have the same. One forward
    and one backward pass.

    Args:
        model: Any model that `probe.watch` sees.
        loss: Runs the model and gives its loss.

    Returns:
        One number a head, by the layer's path; 0 for heads that the loss does not hang on.

    Raises:
        ProbeError: If no gradient reaches a layer.

    Source:
        Michel et al. 2019 (arXiv:1905.10650), section 4.1, equation 2.

    Example:
        >>> import manyheads as mh
        >>> layer, x = mh.MultiHeadAttention(16, 2), torch.randn(1, 9, 16)
        >>> found = importance_by_gradient(layer, lambda: layer(x).square().mean())
        >>> found["(the model)"].shape
        torch.Size([2])
    """
    check_model(model)
    with torch.enable_grad(), watch(model, each=lambda call: call) as calls:
        total = check_number("loss", loss)
    # The gate's gradient is that of what it multiplies, times it; a layer's runs share one gate.
    gates: dict[str, Tensor] = {}
    for call, mixed, slope in zip(calls, *slopes(total, calls), strict=True):
        gate = (slope * mixed).sum(dim=(2, 3))
        gates[call.where] = gates[call.where] + gate if call.where in gates else gate
    return {where: gate.abs().sum(dim=0) for where, gate in gates.items()}


def importance_by_ablation(
    model: nn.Module, loss: Callable[[], Float[Tensor, ""]], heads: Sequence[Head]
) -> dict[Head, float]:
    """By how much the loss grows when each head alone is left out.

    In units of the loss, of any size; 0 for a head that nobody hears, below 0 if the model does
    better without. An even head counts by its values; of n heads that are all alike, in a loss
    that is linear in them, each has an n-th of what all of them have. One forward pass a head.

    Args:
        model: Any model that `probe.watch` sees.
        loss: Runs the model and gives its loss, the same each time.
        heads: (layer, head) each.

    Source:
        Michel et al. 2019 (arXiv:1905.10650), section 3.2.

    Example:
        >>> import manyheads as mh
        >>> layer, x = mh.MultiHeadAttention(16, 2), torch.randn(1, 9, 16)
        >>> heads = [("(the model)", 0), ("(the model)", 1)]
        >>> found = importance_by_ablation(layer, lambda: layer(x).square().mean(), heads)
        >>> list(found) == heads
        True
    """
    check_model(model)
    check_heads(heads)
    with torch.no_grad():
        whole = float(check_number("loss", loss))
        found = {}
        for head in heads:
            with without(model, [head]):
                found[head] = float(check_number("loss", loss)) - whole
    return found


def slopes(
    total: Float[Tensor, ""], calls: Sequence[AttentionCall]
) -> tuple[list[Tensor], list[Tensor]]:
    """What each call mixed, and the gradient of a number with respect to it.

    Args:
        total: The number.
        calls: As ``each`` of `watch` was handed them.

    Returns:
        Two tensors (batch, heads, q_len, value_dim) a call; the gradient is 0 where the number
        does not hang on the call.

    Raises:
        ProbeError: If a call was made outside of autograd's graph.
    """
    mixed = [_followed(call) for call in calls]
    found = torch.autograd.grad(total, [each.tensor for each in mixed], allow_unused=True)
    gradients = [
        each.split(torch.zeros_like(each.tensor) if slope is None else slope)
        for each, slope in zip(mixed, found, strict=True)
    ]
    return [each.heads().detach() for each in mixed], gradients


def _followed(call: AttentionCall) -> Mixed:
    if call.mixed is None or not call.mixed.tensor.requires_grad:
        raise ProbeError(
            f"gradients must reach the output of {call.where}; got one without a graph. Remove "
            f"no_grad and detach, let the parameters require gradients, or use "
            f"importance_by_ablation."
        )
    return call.mixed
