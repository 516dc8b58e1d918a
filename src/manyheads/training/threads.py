"""How many threads are fastest, here and now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

from manyheads.errors import OptionError
from manyheads.models import Transformer, TransformerConfig
from manyheads.tasks import Task
from manyheads.training.batches import encode
from manyheads.training.loss import token_loss

_ROUNDS = 4  # of each count; the first warms up and does not count
_HOPELESS = 3  # times as slow as the fastest: not measured again


def quickest_threads(
    task: Task, config: TransformerConfig, *, batch_size: int = 64, counts: Iterable[int] = ()
) -> int:
    """Measure which number of threads trains a model fastest on this machine at this moment.

    More are not always faster: the operations of a small model are short, and threads that wait
    for one another on a busy machine can be several times slower than one alone.

    Args:
        task: Gives the examples.
        config: Of the model.
        batch_size: Examples in a batch.
        counts: The numbers to try, by default 1 and what torch uses now.

    Returns:
        The fastest number; torch's own setting is left as it was.

    Raises:
        OptionError: If a number is below 1.
    """
    tried = sorted(set(counts) or {1, torch.get_num_threads()})
    if tried[0] < 1:
        raise OptionError(
            f"counts must be at least 1 thread each; got counts={tried}. Pass counts=(1, 2)."
        )
    if len(tried) == 1:
        return tried[0]
    taken: dict[int, list[float]] = {count: [] for count in tried}
    with torch.random.fork_rng(devices=[]), _threads_kept():
        examples = task.split("train")[:batch_size]
        batch = encode(examples, task.source_vocabulary, task.target_vocabulary)
        model = Transformer(config)
        for _ in range(_ROUNDS):
            for count in tried:  # turn and turn about, so that a busy moment hits all alike
                torch.set_num_threads(count)
                started = time.perf_counter()
                total, _ = token_loss(
                    model(batch.source, batch.target[:, :-1]), batch.target[:, 1:]
                )
                total.backward()
                taken[count].append(time.perf_counter() - started)
            best = min(taken[count][-1] for count in tried)
            tried = [count for count in tried if taken[count][-1] <= _HOPELESS * best]
    return min(tried, key=lambda count: median(taken[count][1:]))


@contextmanager
def _threads_kept() -> Iterator[None]:
    count = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(count)
