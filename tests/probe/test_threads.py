"""Watches in several threads, which neither see nor disturb one another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import torch
from tests.probe.by_hand import Separate
from torch import nn

import manyheads as mh


@contextmanager
def elsewhere(work: Callable[[Event, Event], None]) -> Iterator[Callable[[], None]]:
    """Work that another thread has begun, and what lets it come to its end."""
    begun, end = Event(), Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(begun, end)
        except BaseException as error:
            failed.append(error)
            begun.set()

    def finish() -> None:
        end.set()
        thread.join()
        assert not failed, failed

    thread = Thread(target=run)
    thread.start()
    begun.wait()
    yield finish
    finish()


def test_whoever_comes_first_and_leaves_first_takes_nothing_from_the_other():
    model, x = nn.TransformerEncoderLayer(32, 4, batch_first=True).eval(), torch.randn(1, 3, 32)

    def watch(begun: Event, end: Event) -> None:
        with mh.probe.watch(model) as seen:
            begun.set()
            end.wait()
            model(x)
        assert len(seen) == 1

    with elsewhere(watch) as finish, mh.probe.watch(model) as calls, torch.no_grad():
        finish()
        model(x)
    assert [call.refusal for call in calls] == [None]
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_another_thread_runs_is_its_own():
    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] == 7:
                begun.set()
                end.wait()
            return x

    begun, end = Event(), Event()
    model = nn.Sequential(Separate(), Waits(), Separate()).eval()

    def run(its_begun: Event, its_end: Event) -> None:
        nonlocal begun, end
        begun, end = its_begun, its_end
        model(torch.randn(1, 7, 32))

    with mh.probe.watch(model) as calls, elsewhere(run) as finish:
        model[0](torch.randn(1, 5, 32))
        finish()
        model[2](torch.randn(1, 5, 32))
    assert [(call.where, call.output.shape[2]) for call in calls] == [("0", 5), ("2", 5)]
