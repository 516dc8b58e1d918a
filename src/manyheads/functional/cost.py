"""What a call costs on this machine: seconds, and bytes held at once."""

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

REPEATS = 3


def seconds_of(calls: Sequence[Callable[[], Tensor]]) -> list[float]:
    """The median time of each call, taken in turns so that a busy moment strikes both."""
    taken: list[list[float]] = [[] for _ in calls]
    for repeat in range(REPEATS + 1):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            output = call()
            if output.device.type == "cuda":
                torch.cuda.synchronize(output.device)
            if repeat:  # the first warms up
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most that torch's allocator held at once during a call, beyond what it held before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    from torch.profiler import ProfilerActivity, profile

    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    results = seen.profiler.kineto_results
    assert results is not None
    events = [event for event in results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events), default=0)


@contextmanager
def _silent() -> Iterator[None]:
    # The profiler's C++ says on stderr that it starts and stops, past Python's own.
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
