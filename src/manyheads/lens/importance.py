"""How much a model relies on each head, by the gradient of its loss or by leaving the head out."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import ProbeError
from manyheads.lens.without import Head, without
from manyheads.probe import watch


def importance_by_gradient(
    model: nn.Module, loss: Callable[[], Float[Tensor, ""]]
) -> dict[str, Float[Tensor, " heads"]]:
    """By how much the loss would change if each head gave a little more or less.

    The absolute gradient of the loss with respect to a gate of 1 on each head's output, added up
    over the sequences; with a loss that is a mean over them, their mean. From 0; only the order of
    heads has a meaning. One forward and one backward pass.

    Args:
        model: The model; its layers are this package's, Hugging Face's, or call
            ``scaled_dot_product_attention``, as torch's do with ``need_weights=False``.
        loss: Runs the model and gives its loss.

    Returns:
        One number a head, by the layer's path; 0 for heads that the loss does not hang on.

    Raises:
        ProbeError: If a layer multiplies and softmaxes by hand, or gradients are off.

    Source:
        Michel et al. 2019 (arXiv:1905.10650), section 4.1, equation 2.

    Example:
        >>> import manyheads as mh
        >>> layer, x = mh.MultiHeadAttention(16, 2), torch.randn(1, 9, 16)
        >>> found = importance_by_gradient(layer, lambda: layer(x).square().mean())
        >>> found["(the model)"].shape
        torch.Size([2])
    """
    gates: dict[str, Tensor] = {}

    def gate(where: str, output: Tensor) -> Tensor:
        check_gradients(where)
        batch, heads = output.shape[:2]
        if where not in gates:
            gates[where] = output.new_ones(batch, heads, 1, 1).requires_grad_()
        return output * gates[where]

    with torch.enable_grad(), watch(model, each=lambda call: None, change=gate):
        total = loss()
    return {
        where: found.abs().sum(dim=(0, 2, 3))
        for where, found in zip(gates, gradients(total, list(gates.values())), strict=True)
    }


def importance_by_ablation(
    model: nn.Module, loss: Callable[[], Float[Tensor, ""]], heads: Sequence[Head]
) -> dict[Head, float]:
    """By how much the loss grows when each head alone is left out.

    Below 0 if the model does better without. One forward pass a head.

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
    with torch.no_grad():
        whole = float(loss())
        found = {}
        for head in heads:
            with without(model, [head]):
                found[head] = float(loss()) - whole
    return found


def check_gradients(where: str) -> None:
    """Refuse a call through which no gradient can be followed."""
    if not torch.is_grad_enabled():
        raise ProbeError(
            f"gradients must reach the output of {where}; got products and a softmax of its own, "
            f"or gradients turned off. Use importance_by_ablation, call "
            f"scaled_dot_product_attention in that layer, or remove no_grad."
        )


def gradients(total: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The gradients of a number; 0 for tensors that it does not hang on."""
    found = torch.autograd.grad(total, tensors, allow_unused=True)
    pairs = zip(found, tensors, strict=True)
    return [torch.zeros_like(x) if each is None else each for each, x in pairs]
