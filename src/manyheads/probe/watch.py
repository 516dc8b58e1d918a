"""Watch a model's attention while it runs."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from manyheads.errors import DTypeError, ProbeError, ProbeWarning
from manyheads.probe.call import AttentionCall
from manyheads.probe.chunks import watch_chunks
from manyheads.probe.compiled import without_compiler
from manyheads.probe.huggingface import watch_huggingface
from manyheads.probe.ours import watch_ours
from manyheads.probe.pattern import WatchPattern
from manyheads.probe.recorder import Change, Recorder
from manyheads.probe.sdpa import WatchSDPA
from manyheads.probe.torch_mha import without_fast_path


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: str | Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    queries: slice | Sequence[int] | Tensor | None = None,
    each: Callable[[AttentionCall], Any] | None = None,
    change: Change | None = None,
) -> Iterator[list[Any]]:
    """Record every attention computation of a model, whose code stays as it is.

    Seen are this package's layers, Hugging Face models, torch's layers, and hand-written modules
    that call ``scaled_dot_product_attention`` or multiply, softmax and multiply. The model computes
    what it computes unwatched, by the same kernels; torch's own fast path alone is off.

    Args:
        model: Any module, not compiled.
        layers: Whose calls to keep: paths of modules, each with all that is in it; ``*`` stands for
            anything. None keeps all.
        heads: Which heads to keep, counted from 0; None keeps all.
        queries: Which queries to keep; None keeps all.
        each: Is handed each call as it is made; what it returns is kept in the call's place, so
            that nothing as long as the text need be.
        change: Is handed where each call is made and what its heads mixed, (batch, heads, q_len,
            value_dim), and returns what the model goes on with; hand-written products take it
            without gradients.

    Yields:
        A list that grows with each call, in the order in which they are made.

    Raises:
        OptionError: If no module has such a name, or a layer no such head.
        ProbeError: If no attention was seen.

    Warns:
        ProbeWarning: If a softmax of scores was not understood, beside calls that were.

    Example:
        >>> import torch, manyheads as mh
        >>> model = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
        >>> with mh.probe.watch(
        ...     model, layers="self_attn", each=lambda call: call.entropy()
        ... ) as found:
        ...     _ = model(torch.randn(1, 9, 32))
        >>> found[0].shape
        torch.Size([1, 4, 9])
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(
            f"model must be a torch.nn.Module; got model={type(model).__name__}. Watch the module "
            f"itself, and run whatever calls it inside the block."
        )
    recorder = Recorder(model, layers, heads, queries, each, change)
    with ExitStack() as stack:
        stack.enter_context(watch_chunks(recorder))  # whose calls end before the layer is left
        stack.enter_context(recorder.following())
        stack.enter_context(without_fast_path())
        stack.enter_context(without_compiler())
        stack.enter_context(watch_ours(recorder))
        stack.enter_context(watch_huggingface(recorder))
        stack.enter_context(WatchSDPA(recorder))
        stack.enter_context(WatchPattern(recorder))
        yield recorder.calls
    if not recorder.calls:
        raise ProbeError(_nothing(recorder))
    if recorder.missed:
        layers_missed = "; ".join(f"{each} ({step})" for each, step in recorder.missed.items())
        warnings.warn(
            f"watch saw {recorder.seen} calls, but not each softmax of scores, for a step before "
            f"it: {layers_missed}. What these layers attend to is not all there.",
            ProbeWarning,
            stacklevel=3,
        )


def _nothing(recorder: Recorder) -> str:
    if recorder.seen:
        return (
            f"watch must see attention in the layers it was told; got {recorder.seen} calls, all "
            f"in other layers. Leave layers out to see where they are made."
        )
    why = "; ".join(sorted(recorder.notes)) or "nothing that multiplies, softmaxes and multiplies"
    return (
        f"watch must see at least one attention call; got none: {why}. Run the model inside the "
        f"block; give the plain module, for compiled code and kernels of its own cannot be seen; "
        f"and see docs/probe.md for what is recognised."
    )
