"""Calls of Hugging Face models through their common attention interface."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.masks import Causal
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder

Function = Callable[..., tuple[Tensor, Tensor | None]]


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
    interface = library.AttentionInterface
    files = {type(module).__module__ for module in recorder.names}
    own = {name: getattr(sys.modules.get(name), "eager_attention_forward", None) for name in files}
    fused = library.ALL_ATTENTION_FUNCTIONS["sdpa"]
    try:
        interface.register("sdpa", _watched(recorder, fused, is_eager=False))
        for name, function in own.items():
            if function is not None:
                watched = _watched(recorder, function, is_eager=True)
                sys.modules[name].eager_attention_forward = watched  # type: ignore[attr-defined]
        yield
    finally:
        interface.register("sdpa", fused)
        for name, function in own.items():
            if function is not None:
                sys.modules[name].eager_attention_forward = function  # type: ignore[attr-defined]


def _watched(recorder: Recorder, function: Function, *, is_eager: bool) -> Function:
    def watched(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        given = (module, query, key, value, attention_mask)
        # Positional options are not ours to read: what is called inside is seen all the same.
        if args or not recorder.is_free or module not in recorder.names:
            return function(*given, *args, **options)
        with recorder.busy():
            output, weights = function(*given, **options)
        recorder.record(
            "huggingface",
            lambda: _call(*given, is_eager=is_eager, **options),
            Mixed(output, lambda x: x.transpose(1, 2)),
            is_told=not options.get("dropout"),
            module=module,
        )
        if recorder.change is not None:
            output = recorder.changed(output.transpose(1, 2), module).transpose(1, 2)
        return output, weights

    return watched


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
    return prepare(
        q, k.expand(q.shape[0], *k.shape[1:]), v.expand(q.shape[0], *v.shape[1:]),
        mask if start is None else Causal(), bias=bias, scale=scaling, softcap=softcap,
        sink_logits=sinks, dropout=0.0, q_pos=start, kv_pos=start, need="weights",
    )  # fmt: skip
