"""Compiled code, which nobody could see into, runs as it was written while it is watched."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from manyheads.probe.shared import Shared


def without_compiler() -> AbstractContextManager[None]:
    """Let compiled functions run uncompiled."""
    # Where nobody has loaded the compiler there is nothing compiled; loading it takes seconds.
    if {"torch._dynamo", "torch.nn.attention.flex_attention"}.isdisjoint(sys.modules):
        return nullcontext()
    return _EAGER.held()


_EAGER = Shared(lambda: torch.compiler.set_stance("force_eager"))
