"""Layers that attend in chunks, whose small products do not tell which tokens they are of."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from manyheads.errors import ProbeError
from manyheads.functional import Call
from manyheads.probe.big_bird import read_big_bird
from manyheads.probe.hooks import Hook
from manyheads.probe.layer import Layer, Read, merged
from manyheads.probe.longformer import read_longformer
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder
from manyheads.probe.reformer import read_hashed, read_local

Reader = Callable[[Layer], list[Read]]
READERS: dict[str, Reader] = {
    "LongformerSelfAttention": read_longformer,
    "LEDEncoderSelfAttention": read_longformer,
    "BigBirdBlockSparseAttention": read_big_bird,
    "BigBirdPegasusBlockSparseAttention": read_big_bird,
    "LocalSelfAttention": read_local,
    "LSHSelfAttention": read_hashed,
}
"""By the class of a layer of Hugging Face: the calls that a run of it made."""


@contextmanager
def watch_chunks(recorder: Recorder) -> Iterator[None]:
    """Read such layers from outside, and let nobody look at the products in them."""
    with ExitStack() as stack:
        for module in recorder.names:
            kind = type(module)
            if kind.__module__.startswith("transformers.") and kind.__name__ in READERS:
                stack.enter_context(_Run(recorder, module, READERS[kind.__name__]).watching())
        yield


class _Run:
    """The runs of one layer, one at a time."""

    def __init__(self, recorder: Recorder, module: nn.Module, read: Reader) -> None:
        self.recorder, self.module, self.read = recorder, module, read
        self._parts: dict[str, Tensor] = {}
        self._inside = ExitStack()
        self._is_running = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow them in here."""
        leave = Hook(self._leave)
        handles = [
            self.module.register_forward_pre_hook(Hook(self._enter)),
            self.module.register_forward_hook(leave, with_kwargs=True, always_call=True),
        ]
        for name, child in self.module.named_children():
            handles.append(child.register_forward_hook(Hook(partial(self._keep, name))))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, *_: Any) -> None:
        if self.recorder.is_idle:
            self._is_running = True
            self._inside.enter_context(self.recorder.busy())

    def _keep(self, name: str, _: nn.Module, args: Any, output: Any) -> None:
        if self._is_running and self.recorder.is_here:
            self._parts[name] = output

    def _leave(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not self._is_running or not self.recorder.is_here:
            return None
        self._is_running, parts, self._parts = False, self._parts, {}
        self._inside.close()
        if output is None:  # it failed
            return None
        given = inspect.signature(self.module.forward).bind(*args, **kwargs).arguments
        return self._record(Layer(self.module, given, parts, output))

    def _record(self, layer: Layer) -> Any:
        output = layer.output
        for read in self.read(layer):
            self.recorder.record(
                "huggingface",
                partial(_settled, read),
                Mixed(output[0], partial(_heads, layer, read)),
                is_told=not (layer.module.training and getattr(layer.module, "dropout", False)),
                module=layer.module,
                rounding=read.rounding,
            )
        if self.recorder.change is None:
            return None
        heads = self.recorder.changed(layer.split(output[0]), layer.module)
        rest = (merged(heads), *output[1:])
        return type(output)(*rest) if hasattr(output, "_fields") else rest


def _heads(layer: Layer, read: Read, x: Tensor) -> Tensor:
    return read.split(layer.split(x))


def _settled(read: Read) -> Call:
    try:
        return read.call()
    except (KeyError, AttributeError) as error:
        raise ProbeError(
            f"a layer must be built as in the versions of transformers that were tested; got none "
            f"of its {error}. Install one of those."
        ) from error
