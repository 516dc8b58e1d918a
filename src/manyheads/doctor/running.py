"""Running a model so that nothing else notices: seeded, silent, its own state put back."""

import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy
import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.errors import ExamineError

_KEPT: WeakKeyDictionary[nn.Module, dict[int, tuple[Tensor, int, Tensor]]] = WeakKeyDictionary()
"""Of each model that was run: its buffers, their versions, and copies of them."""


@contextmanager
def unnoticed(seed: int = 0) -> Iterator[None]:
    """A block whose random numbers are seeded, and after which every generator is as before."""
    python, array = random.getstate(), numpy.random.get_state()
    grad = torch.is_grad_enabled()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch.manual_seed keeps a stack trace for a GPU that nobody woke, which takes longest.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
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
    kept = _buffers(model)
    given = [(tensor, tensor.detach().clone()) for tensor in call.leaves()]
    with unnoticed(seed):
        try:
            with torch.set_grad_enabled(grad):
                own = call.apart(live)
                return model(*own.args, **own.kwargs)
        finally:
            with torch.no_grad():
                for key, (buffer, _, value) in kept.items():
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)
                        kept[key] = buffer, buffer._version, value
                for tensor, value in given:
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)


def _buffers(model: nn.Module) -> dict[int, tuple[Tensor, int, Tensor]]:
    """A model's buffers with copies. Masks and tables can be large, so copies serve many calls."""
    kept, found = _KEPT.get(model, {}), {}
    for buffer in model.buffers():
        old = kept.get(id(buffer))
        if old is None or old[0] is not buffer or old[1] != buffer._version:
            old = buffer, buffer._version, buffer.detach().clone()
        found[id(buffer)] = old
    _KEPT[model] = found
    return found


@contextmanager
def answering(call: Call) -> Iterator[None]:
    """What a model raises at its own example is told as what the example must be."""
    try:
        yield
    except ExamineError:
        raise
    except Exception as error:
        told = f"model must answer its example input; got {type(error).__name__}: {error}."
        if re.search("cuda|triton", str(error), re.IGNORECASE):
            raise ExamineError(
                f"{told} Models are examined on the CPU, and its code wants a GPU: give a variant "
                f"for the CPU."
            ) from error
        raise ExamineError(
            f"{told} It takes {', '.join(call.names) or 'unnamed arguments'}, and was given "
            f"{', '.join(name for name, _ in call.items()) or 'nothing'}: give examine(model, "
            f"...), or --inputs, whatever a call of the model needs."
        ) from error
