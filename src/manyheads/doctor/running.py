"""Running a model so that nothing else notices: seeded, silent, its own state put back."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call


@contextmanager
def unnoticed(seed: int = 0) -> Iterator[None]:
    """A block whose random numbers are seeded, and after which every generator is as before."""
    python, array = random.getstate(), numpy.random.get_state()
    grad = torch.is_grad_enabled()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
            random.setstate(python)
            numpy.random.set_state(array)


def run(
    model: nn.Module, call: Call, *, grad: bool = False, seed: int = 0, live: Any = None
) -> Any:
    """Call a model in the mode that it is in; its buffers and its inputs are as before.

    Args:
        model: What to call.
        call: What it is asked. It is handed copies of caches and the like, which it may fill.
        grad: Whether to keep what gradients need.
        seed: Of its random numbers.
        live: The one object that it may change.
    """
    written = [*model.buffers(), *call.leaves()]
    kept = [(tensor, tensor.detach().clone()) for tensor in written]
    with unnoticed(seed):
        try:
            with torch.set_grad_enabled(grad):
                own = call.apart(live)
                return model(*own.args, **own.kwargs)
        finally:
            with torch.no_grad():
                for tensor, value in kept:
                    if not _same(tensor, value):
                        tensor.copy_(value)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())
