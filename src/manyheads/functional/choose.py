"""Which backend does a call, and why: the chooser and its explanation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import BackendError, is_named
from manyheads.functional.bias import PlacedBias
from manyheads.functional.blocks import BLOCKS
from manyheads.functional.call import Backend, Call, Refusal, prepare
from manyheads.functional.chunked import CHUNKED
from manyheads.functional.flex import FLEX
from manyheads.functional.fused import FUSED
from manyheads.functional.lowering import written_shape
from manyheads.functional.reference import REFERENCE
from manyheads.functional.varlen import VARLEN
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias
from manyheads.shapes import Positions

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (VARLEN, BLOCKS, FLEX, FUSED, CHUNKED, REFERENCE)
}
"""Every backend by its name, in the order in which "auto" tries them."""


@dataclass(frozen=True)
class Auto:
    """Let the library choose the backend, as ``backend="auto"`` does, under a condition.

    Args:
        never_quadratic: Refuse a call rather than make a tensor of q_len x kv_len for it, whose
            memory grows with the square of the length.

    Example:
        >>> import torch, manyheads as mh
        >>> from manyheads.functional import Auto
        >>> q = k = v = torch.zeros(1, 2, 64, 8)
        >>> mh.attention(q, k, v, mh.Window(4), backend=Auto(never_quadratic=True)).shape
        torch.Size([1, 2, 64, 8])
    """

    never_quadratic: bool = False


def choose(call: Call, backend: str | Auto) -> Backend:
    """The backend that does a call: the named one, or with "auto" the first that gains by it.

    Raises:
        BackendError: If the name is unknown, or the named backend cannot do the call.
    """
    if backend == "auto":
        # A compiler would make a program of its own for each answer.
        traced = torch.compiler.is_compiling()
        pairs = 0 if traced else call.q.shape[0] * call.q.shape[2] * call.k.shape[2]
        for candidate in BACKENDS.values():
            if pairs < candidate.least_pairs or not candidate.serves(call):
                continue
            if next(candidate.refusals(call), None) is None and not candidate.declines(call):
                return candidate
    if isinstance(backend, Auto):
        return _within_bounds(call) if backend.never_quadratic else choose(call, "auto")
    if not is_named(backend, BACKENDS):
        raise BackendError(
            f"backend must be one of auto, {', '.join(BACKENDS)}; got backend={backend!r}. "
            f"Ask explain(...) which can do the call."
        )
    named = BACKENDS[backend]
    refusal = next(named.refusals(call), None)
    if refusal is not None:
        raise BackendError(
            f"backend={backend!r} must be able to do the call; got one that it cannot do: "
            f"{refusal.why}. Either {refusal.cure}, or let backend='auto' choose."
        )
    return named


def _within_bounds(call: Call) -> Backend:
    """The first backend that gains by the call, or can at least do it, in linear memory."""
    able, reasons = [], []
    for candidate in BACKENDS.values():
        if not candidate.serves(call):
            continue
        refusal = next(candidate.refusals(call), None)
        if refusal is not None:
            reasons.append(f"{candidate.name}: {refusal.why}, so {refusal.cure}")
        elif candidate.quadratic(call):
            reasons.append(f"{candidate.name}: it makes a tensor of q_len x kv_len")
        elif not candidate.declines(call):
            return candidate
        else:
            able.append(candidate)
    if able:
        return able[0]
    raise BackendError(
        f"backend=Auto(never_quadratic=True) must find a backend of linear memory; got a call that "
        f"none can do: {'; '.join(reasons)}. Change the call, or let backend='auto' choose."
    )


@dataclass(frozen=True)
class Row:
    """What `explain` says of one backend.

    Args:
        backend: Its name.
        refusals: Why it cannot do the call, and what would change that; empty if it can.
        declines: Why "auto" passes it by, even if it can; None if it would gain.
        extra_bytes: Memory beyond inputs and output, in bytes; None if it cannot do the call.
        chosen: Whether it does the call.
    """

    backend: str
    refusals: tuple[Refusal, ...]
    declines: str | None
    extra_bytes: int | None
    chosen: bool

    @property
    def can(self) -> bool:
        """Whether the backend can do the call."""
        return not self.refusals


@dataclass(frozen=True)
class Explanation:
    """Which backend does a call and why; prints as a table.

    Args:
        rows: One for each backend, in the order in which "auto" tries them.
        notes: What else is worth knowing of the call.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> str:
        """The name of the backend that does the call."""
        return next(row.backend for row in self.rows if row.chosen)

    @property
    def cure(self) -> str | None:
        """The smallest change that reaches a faster backend than the chosen one, if any."""
        for row in self.rows:
            if row.chosen:
                return None
            if row.refusals and not row.declines:
                return f"for {row.backend}: " + ", and ".join(r.cure for r in row.refusals)
        return None

    def __str__(self) -> str:
        lines = [f"{'':2}{'backend':<11}{'can':<5}{'extra memory':>14}  why"]
        for row in self.rows:
            memory = "-" if row.extra_bytes is None else _size(row.extra_bytes)
            why = "; ".join(r.why for r in row.refusals) or BACKENDS[row.backend].summary
            if row.can and row.declines and not row.chosen:
                why = f"no gain: {row.declines}"
            mark = "> " if row.chosen else "  "
            can = "yes" if row.can else "no"
            lines.append(f"{mark}{row.backend:<11}{can:<5}{memory:>14}  {why}")
        if self.cure:
            lines.append(f"faster, {self.cure}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Bound | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout: float = 0.0,
    q_pos: Positions = None,
    kv_pos: Positions = None,
    backend: str | Auto = "auto",
    verbose: bool = True,
) -> Explanation:
    """Tell which backend `attention` would take for these arguments, why, and at what memory.

    Args:
        q: As in `attention`, and so are all but the last; tensors on the meta device will do.
        k: See `attention`.
        v: See `attention`.
        mask: See `attention`.
        bias: See `attention`.
        scale: See `attention`.
        softcap: See `attention`.
        sink_logits: See `attention`.
        dropout: See `attention`.
        q_pos: See `attention`.
        kv_pos: See `attention`.
        backend: See `attention`.
        verbose: Whether to print the table as well as return it.

    Returns:
        A table with a row for each backend: can it, why not, extra bytes; and the smallest change
        that reaches a faster one. Second derivatives and forward mode need "reference" whatever
        the table says.

    Example:
        >>> import torch, manyheads as mh
        >>> q = k = v = torch.zeros(1, 2, 4, 8)
        >>> table = mh.explain(q, k, v, mh.Causal(), softcap=30.0, verbose=False)
        >>> table.chosen, table.cure
        ('reference', 'for fused: leave softcap out')
    """
    call = prepare(
        q,
        k,
        v,
        mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sink_logits=sink_logits,
        dropout=dropout,
        q_pos=q_pos,
        kv_pos=kv_pos,
        need="output",
    )
    chosen = choose(call, backend)
    rows = []
    for candidate in BACKENDS.values():
        refusals = tuple(candidate.refusals(call))
        declines = _passed_by(candidate, call)
        extra = None if refusals else candidate.extra_bytes(call)
        rows.append(Row(candidate.name, refusals, declines, extra, candidate is chosen))
    table = Explanation(tuple(rows), _notes(call, chosen))
    if verbose:
        print(table)
    return table


def _passed_by(candidate: Backend, call: Call) -> str | None:
    """Why "auto" passes a backend by, even if it can do the call."""
    if candidate.serves(call):
        return candidate.declines(call)
    return f"it gains on {' and '.join(candidate.devices or ())} alone, and must be named elsewhere"


def _notes(call: Call, chosen: Backend) -> tuple[str, ...]:
    notes = []
    q_len, kv_len = call.q.shape[2], call.k.shape[2]
    blind = call.mask is not None and call.mask.q.absent is not None
    if blind and q_len > kv_len:
        notes.append(
            f"q_len={q_len} exceeds kv_len={kv_len}: the first {q_len - kv_len} queries stand "
            f"before every key and see nobody, unless positions say otherwise"
        )
    if call.mask is not None and chosen is FUSED and not call.mask.is_causal:
        shape = written_shape(call)
        if shape is not None and shape[2] > 1:
            notes.append(f"the mask {call.mask.rule} is written out, q_len x kv_len numbers")
    if isinstance(call.bias, PlacedBias) and chosen is FUSED:
        folded = call.bias.fold(call.q, call.k, call.mask, call.scale)
        how = (
            "written out, a number for each head and pair"
            if folded is None
            else f"folded into {folded.q.shape[-1]} further features, so nothing is q_len x kv_len"
        )
        notes.append(f"the bias {call.bias.rule} is {how}")
    return tuple(notes)


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
