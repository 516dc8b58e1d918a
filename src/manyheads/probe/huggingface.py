"""Calls of Hugging Face models through their common attention interface."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.masks import Causal, bind
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder

Function = Callable[..., tuple[Tensor, Tensor | None]]
EAGER = "eager_attention_forward"
_LOCK = Lock()


@contextmanager
def watch_huggingface(recorder: Recorder) -> Iterator[None]:
    """Record what the model's own attention functions compute, which stay the same.

    The function that the interface holds for "sdpa" and those that modelling files hold for
    "eager" are wrapped while watched. Others (flex, flash) are not: what they call is seen as is.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        yield
        return
    register = partial(library.AttentionInterface.register, "sdpa")
    with ExitStack() as stack:
        read = partial(library.ALL_ATTENTION_FUNCTIONS.__getitem__, "sdpa")
        stack.enter_context(_wrapped(read, register, partial(Watched, recorder, is_eager=False)))
        for name in {type(module).__module__ for module in recorder.names}:
            file = sys.modules.get(name)
            if getattr(file, EAGER, None) is not None:
                read, write = partial(getattr, file, EAGER), partial(setattr, file, EAGER)
                wrap = partial(Watched, recorder, is_eager=True)
                stack.enter_context(_wrapped(read, write, wrap))
        yield


class Watched:
    """An attention function whose calls are recorded.

    Args:
        recorder: Keeps them.
        function: The function.
        is_eager: Whether it is the one that a modelling file holds.
    """

    def __init__(self, recorder: Recorder, function: Function, *, is_eager: bool) -> None:
        self.recorder, self.function, self.is_eager = recorder, function, is_eager

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """What the function gives."""
        given = (module, query, key, value, attention_mask)
        recorder = self.recorder
        # Positional options are not ours to read: what is called inside is seen all the same.
        if args or not recorder.is_free or module not in recorder.names:
            return self.function(*given, *args, **options)
        with recorder.busy():
            output, weights = self.function(*given, **options)
        recorder.record(
            "huggingface",
            lambda: _call(*given, is_eager=self.is_eager, **options),
            Mixed(output, lambda x: x.transpose(1, 2)),
            is_told=not options.get("dropout"),
            module=module,
        )
        if recorder.change is not None:
            output = recorder.changed(output.transpose(1, 2), module).transpose(1, 2)
        return output, weights


@contextmanager
def _wrapped(
    read: Callable[[], Any],
    write: Callable[[Any], object],
    wrap: Callable[[Function], Watched],
) -> Iterator[None]:
    """Wrap a function that the whole process shares; unwrap it alone, whoever has wrapped it too.

    Threads that watch at once do not leave in the order in which they came.
    """
    with _LOCK:
        own = wrap(read())
        write(own)
    try:
        yield
    finally:
        with _LOCK:
            outer = read()
            if outer is own:
                write(own.function)
            while isinstance(outer, Watched):
                if outer.function is own:
                    outer.function = own.function
                outer = outer.function


def _call(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,
    *,
    is_eager: bool,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> Call:
    mask, bias, start = None, position_bias, None
    if attention_mask is not None:
        attention_mask = attention_mask[..., : k.shape[2]]
        if attention_mask.dtype == torch.bool:
            mask = attention_mask
        else:
            bias = attention_mask if bias is None else bias + attention_mask
    elif not is_eager and q.shape[2] > 1:
        own = getattr(module, "is_causal", True) if is_causal is None else is_causal
        start = 0 if own else None  # the first query sees the first key alone, as torch has it
    sinks = getattr(module, "sinks", None) if is_eager else None
    call = prepare(
        q, k.expand(q.shape[0], *k.shape[1:]), v.expand(q.shape[0], *v.shape[1:]),
        mask if start is None else Causal(), bias=bias, scale=scaling, softcap=softcap,
        sink_logits=sinks, dropout=0.0, q_pos=start, kv_pos=start, need="weights",
    )  # fmt: skip
    if attention_mask is None or not getattr(module, "is_causal", False):
        return call
    return _placed(call, attention_mask, mask)


def _placed(call: Call, given: Tensor, mask: Tensor | None) -> Call:
    """The call whose queries stand where a causal mask shows their own keys.

    A cache of a fixed length has keys behind the last query, which are empty so far.
    """
    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    first, last = (_last_seen(given[:, :, at]) for at in (0, -1))
    start = last - q_len + 1
    if q_len >= kv_len or start < 0 or start == kv_len - q_len or first not in (start, -1):
        return call
    seen = bind(
        mask, call.q.shape[0], q_len, kv_len, q_pos=start, kv_pos=0, device=call.q.device
    )  # fmt: skip
    return call._replace(mask=seen)


def _last_seen(row: Tensor) -> int:
    """The last key that a query sees in any sequence; -1 if there is none."""
    seen = row if row.dtype == torch.bool else row > torch.finfo(row.dtype).min / 2
    found = seen.flatten(0, -2).any(dim=0).nonzero()
    return int(found[-1]) if len(found) else -1
