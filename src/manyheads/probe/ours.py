"""Calls of this package's own attention, seen on their one seam."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from manyheads.functional import Call, Result
from manyheads.functional.seam import observed_by
from manyheads.probe.call import compared_rows
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder


def watch_ours(recorder: Recorder) -> AbstractContextManager[None]:
    """Record the calls of `attention` and its kin."""

    def observe(compute: Callable[[Call], Result], call: Call) -> Result:
        if not recorder.is_free:
            return compute(call)
        with recorder.busy():
            result = compute(call)
        weights = None if result.weights is None else compared_rows(result.weights)
        recorder.record(
            "manyheads",
            lambda: call,
            Mixed(result.output),
            weights=weights,
            is_told=not call.dropout,
        )
        return result._replace(output=recorder.changed(result.output))

    return observed_by(observe)
