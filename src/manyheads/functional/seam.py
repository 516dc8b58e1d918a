"""The one place through which every call of attention passes, for those who watch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch

from manyheads.functional.call import Call, Result
from manyheads.functional.choose import Auto, choose

Observer = Callable[[Callable[[Call], Result], Call], Result]
"""Is handed what does the call, and the call; returns the result of doing it, as it is."""

_OBSERVERS: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


def run(call: Call, backend: str | Auto) -> Result:
    """Do a call by the backend that is chosen for it."""
    compute = choose(call, backend).run
    if not torch.compiler.is_compiling():
        for observer in _OBSERVERS.get():
            compute = partial(observer, compute)
    return compute(call)


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Hand every call of attention in this context to an observer; calls in compiled code pass."""
    token = _OBSERVERS.set((*_OBSERVERS.get(), observer))
    try:
        yield
    finally:
        _OBSERVERS.reset(token)
