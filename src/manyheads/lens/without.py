"""A model without some of its heads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.lens.checks import check_heads, check_model
from manyheads.probe import watch

Head = tuple[str, int]
"""A head by its layer's path in the model, as `probe.watch` tells it, and its number."""


@contextmanager
def without(model: nn.Module, heads: Sequence[Head]) -> Iterator[None]:
    """Let some heads give nothing, for as long as the block lasts: ablation.

    What a head mixes is 0 before the projection behind the heads, as if it had been pruned; the
    projection's bias stays. Any model that `probe.watch` sees can be run so; its weights are never
    touched.

    Args:
        model: The model.
        heads: (layer, head) each, as in the table of `summarize_heads`.

    Raises:
        OptionError: If no such layer made a call, or it has no such head.
        ProbeError: If no attention was seen.

    Source:
        Michel et al. 2019 (arXiv:1905.10650), section 3.1.

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.MultiHeadAttention(16, 2, bias=False)
        >>> with without(layer, [("(the model)", 0), ("(the model)", 1)]):
        ...     out = layer(torch.randn(1, 9, 16))
        >>> out.abs().max().item()
        0.0
    """
    check_model(model)
    check_heads(heads)
    lost: dict[str, list[int]] = {}
    for layer, head in heads:
        lost.setdefault(layer, []).append(head)
    met: list[str] = []

    def silence(where: str, output: Tensor) -> Tensor:
        met.append(where)
        if where not in lost:
            return output
        num_heads = output.shape[1]
        wrong = [head for head in lost[where] if not 0 <= head < num_heads]
        if wrong:
            raise OptionError(
                f"heads must be numbers from 0 to {num_heads - 1} in {where}; got "
                f"{(where, wrong[0])}. Take them from summarize_heads."
            )
        keep = output.new_ones(num_heads, 1, 1)
        keep[lost[where]] = 0.0
        return output * keep

    with watch(model, each=lambda call: None, change=silence):
        yield
    missing = sorted(set(lost) - set(met))
    if missing:
        raise OptionError(
            f"heads must be of layers that made a call; got {missing[0]!r}. Calls were made in "
            f"{', '.join(dict.fromkeys(met))}."
        )
