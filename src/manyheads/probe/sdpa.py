"""Calls of torch's scaled_dot_product_attention, under whichever name it goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.masks import Causal
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder

FUSED = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)
"""What it becomes on different devices, where only torch's own functions call it."""


SDPA = F.scaled_dot_product_attention


class WatchSDPA(TorchFunctionMode):
    """Records calls of `scaled_dot_product_attention`."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self._inside():
                return func(*args, **kwargs)
        if func is not SDPA or not self.recorder.is_free:
            return func(*args, **kwargs)
        with self.recorder.busy():
            output = func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        record_sdpa(self.recorder, {**dict(zip(names, args, strict=False)), **kwargs}, output)
        if self.recorder.change is not None:
            output = self.recorder.changed(four(output)).reshape(output.shape)
        return output

    @contextmanager
    def _inside(self) -> Iterator[None]:
        # A mode is off while it handles a function, and would miss what torch's own layer calls.
        def seen(*args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(SDPA, (), args, kwargs)

        F.scaled_dot_product_attention = seen
        try:
            yield
        finally:
            F.scaled_dot_product_attention = SDPA


def record_sdpa(recorder: Recorder, given: dict[str, Any], output: Tensor) -> None:
    """Record a call by the names of its arguments."""
    is_told = not given.get("dropout_p")
    recorder.record("sdpa", lambda: call_of(given), Mixed(output, four), is_told=is_told)


def call_of(given: dict[str, Any]) -> Call:
    """A call of `scaled_dot_product_attention` in our words."""
    q, k, v = (four(given[name]) for name in ("query", "key", "value"))
    k, v = (x.expand(q.shape[0], *x.shape[1:]) for x in (k, v))
    seen = given.get("attn_mask")
    seen = given.get("attn_bias") if seen is None else seen
    mask = bias = None
    if seen is not None:
        # It is broadcast from the right: (heads, q_len, kv_len) is one for all rows.
        seen = seen[(None,) * max(0, given["query"].ndim - seen.ndim)]
        seen = four(seen.expand(*given["query"].shape[: max(0, seen.ndim - 2)], *seen.shape[-2:])
                    if seen.ndim > 4 else seen)  # fmt: skip
        mask, bias = (seen, None) if seen.dtype.is_floating_point is False else (None, seen)
    start = 0 if given.get("is_causal") else None
    return prepare(
        q, k, v, Causal() if start == 0 else mask, bias=bias, scale=given.get("scale"),
        softcap=None, sink_logits=None, dropout=0.0, q_pos=start, kv_pos=start, need="weights",
    )  # fmt: skip


def four(x: Tensor) -> Tensor:
    """(batch, heads, length, width), whatever stands before the last two dimensions."""
    while x.ndim < 4:
        x = x[None] if x.ndim < 3 else x[:, None]
    return x.flatten(0, x.ndim - 4) if x.ndim > 4 else x
