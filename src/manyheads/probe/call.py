"""One call of attention that a model made, as it was seen."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ProbeError
from manyheads.functional import Call, Statistics
from manyheads.functional.bias import PlacedBias
from manyheads.functional.reference import softmax_scores
from manyheads.functional.window import window
from manyheads.masks import Bound, Tokens
from manyheads.probe.mixed import Mixed

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""By how much a reproduced output may differ, as a share of the greatest number in it."""


class AttentionCall(Statistics):
    """One attention computation of a watched model; answers what `Statistics` answers.

    Numbers are given if the call could be reproduced from what was seen of it (a few rows of its
    weights or its output are computed and compared at once), and refused otherwise.

    Args:
        where: The module whose forward made the call, by its path in the model.
        source: How it was seen: "manyheads", "huggingface", "sdpa" or "pattern".
        call: What was seen: q, k, v, mask, bias, scale, softcap, sink logits; None if nothing
            that could be understood.
        output: (batch, heads, q_len, value_dim), what the model mixed.
        refusal: Why no numbers are given; None if they are.
        mixed: The same output with autograd's graph, of all heads and queries; only ``each`` of
            `watch` is handed it.

    Attributes:
        run: Marks the run of the module that made the call: the same for all calls of one run.

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.MultiHeadAttention(32, 4)
        >>> with mh.probe.watch(layer) as calls:
        ...     _ = layer(torch.randn(1, 9, 32), mask=mh.Causal())
        >>> calls[0]
        AttentionCall('(the model)', manyheads, 4 heads, 9 x 9)
        >>> calls[0].weights(rows=8).shape, calls[0].entropy().shape
        (torch.Size([1, 4, 1, 9]), torch.Size([1, 4, 9]))
    """

    def __init__(
        self,
        where: str,
        source: str,
        call: Call | None,
        output: Tensor | None = None,
        refusal: str | None = None,
        mixed: Mixed | None = None,
    ) -> None:
        self.where, self.source, self.output, self.refusal = where, source, output, refusal
        self.mixed = mixed
        self.run: object = None
        self._call, self._kept = call, None
        if call is not None:
            super().__init__(call)

    @property
    def call(self) -> Call:
        """What was seen.

        Raises:
            ProbeError: If it does not explain what the model computed.
        """
        if self.refusal is not None or self._call is None:
            raise ProbeError(
                f"a call must be understood to be told; got {self.where}, where {self.refusal}. "
                f"Look at another layer, or report this model's attention."
            )
        return self._call

    @call.setter
    def call(self, call: Call) -> None:
        self._call = call

    def __repr__(self) -> str:
        if self.refusal is not None or self._call is None:
            return f"AttentionCall({self.where!r}, {self.source}, refused: {self.refusal})"
        _, heads, q_len, _ = self._call.q.shape
        kv_len = self._call.k.shape[2]
        return f"AttentionCall({self.where!r}, {self.source}, {heads} heads, {q_len} x {kv_len})"


def compared_rows(x: Tensor) -> Tensor:
    """The few rows of (batch, heads, q_len, ...) by which a call is judged."""
    q_len = x.shape[2]
    rows = sorted({0, q_len // 3, q_len // 2, q_len - 1} & set(range(q_len)))
    return x[:, :, torch.tensor(rows, dtype=torch.int64, device=x.device)]


def disagreement(
    call: Call,
    output: Tensor | None,
    weights: Tensor | None = None,
    rounding: float | None = None,
) -> str | None:
    """Why a call cannot be what the model computed, judged by a few rows; None if it can.

    Args:
        call: What was seen.
        output: What the model mixed; None if there is nothing to compare.
        weights: The model's own weights of those rows, where it has them.
        rounding: By what share of the greatest number they may differ; None for what is usual in
            the dtype.
    """
    batch, _, q_len, _ = call.q.shape
    kv_len = call.k.shape[2]
    if not (batch and q_len and kv_len):
        return None
    rows = compared_rows(torch.arange(q_len, device=call.q.device)[None, None])[0, 0]
    tolerance = _TOLERANCE[call.q.dtype] if rounding is None else rounding
    own, _ = softmax_scores(window(call, slice(0, batch), rows, slice(0, kv_len)))
    if weights is not None and not _close(own, weights, tolerance):
        return "weights computed from what was seen differ from the model's own"
    if output is not None:
        own = own.unflatten(1, (call.k.shape[1], -1))  # (batch, kv_heads, group, rows, keys)
        mixed = (own @ call.v[:, :, None].to(own.dtype)).flatten(1, 2)
        if not _close(mixed, compared_rows(output), tolerance):
            return "the output computed from what was seen differs from the model's own"
    return None


def _close(found: Tensor, right: Tensor, tolerance: float) -> bool:
    right = right.to(found.dtype)
    most = right.abs().amax().clamp(min=1e-6)
    return bool(((found - right).abs() <= tolerance * most).all())


def owned(call: Call) -> Call:
    """The call in tensors of its own, which no later step of the model changes."""
    bias = call.bias
    if isinstance(bias, PlacedBias):
        bias = PlacedBias(bias.rule, _own(bias.q_pos), _own(bias.kv_pos))
    return call._replace(
        q=_own(call.q),
        k=_own(call.k),
        v=_own(call.v),
        mask=None if call.mask is None else _own_mask(call.mask),
        bias=_own(bias),
        sink_logits=_own(call.sink_logits),
    )


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _own_mask(mask: Bound) -> Bound:
    pairs = {name: _own(fact) for name, fact in mask.pairs.items()}
    return Bound(mask.rule, _own_tokens(mask.q), _own_tokens(mask.kv), pairs, mask.clean)


def _own_tokens(tokens: Tokens) -> Tokens:
    marks = {name: _own(mark) for name, mark in tokens.marks.items()}
    return replace(tokens, position=_own(tokens.position), absent=_own(tokens.absent), marks=marks)
