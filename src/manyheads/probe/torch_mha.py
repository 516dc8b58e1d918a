"""torch.nn.MultiheadAttention: its fast path, which nobody could see into, and its heads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from manyheads.probe.shared import Shared


def without_fast_path() -> AbstractContextManager[None]:
    """Let torch's layers compute by its functions, and not by one opaque kernel in eval mode."""
    return _SLOW.held()


@contextmanager
def _slow() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


_SLOW = Shared(_slow)


def heads_of(module: nn.Module | None) -> int | None:
    """How many heads torch's layer has folded into its batch; None for any other module."""
    return module.num_heads if isinstance(module, nn.MultiheadAttention) else None
