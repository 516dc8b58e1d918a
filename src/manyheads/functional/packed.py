"""Stretches of tokens laid end to end, for torch's varlen kernel for CUDA."""

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.functional.call import Call, Refusal, Result
from manyheads.masks import Bound, Causal, Mask, Window
from manyheads.masks.algebra import And, Everyone
from manyheads.masks.segments import Segment, Span

WIDEST = 256
"""The greatest head_dim of the kernel."""

Near = tuple[int, int]
"""Neighbours seen before and after, self not counted; -1 for all of them."""

Rows = tuple[list[Segment], ...]
"""The segments of each sequence."""


def refusals(call: Call) -> Iterator[Refusal]:
    """Why the kernel cannot do a call, whatever its segments are."""
    if call.q.dtype not in (torch.float16, torch.bfloat16):
        yield Refusal("on CUDA the kernel is for 16 bits", "convert q, k and v to bfloat16")
    if max(call.q.shape[3], call.v.shape[3]) > WIDEST:
        yield Refusal(f"the kernel's heads are at most {WIDEST} wide", "make them narrower")
    if call.need == "lse" or call.sink_logits is not None:
        yield Refusal("its log-sum-exp has no gradient", "leave lse and sink_logits out")
    if call.scale <= 0:
        yield Refusal("the kernel needs a scale above 0", "give the sign to q")


def serves(found: Rows) -> bool:
    """Whether each segment's mask is one that the kernel knows: none, causal, or a window."""
    return all(near(segment.mask) is not None for row in found for segment in row)


def near(mask: Bound) -> Near | None:
    """What a mask leaves, if it leaves neighbours and hides nothing else."""
    if mask.is_plain:
        return -1, -1
    # Kernels differ in how they align a window where lengths differ; where they are equal, not.
    q, kv = mask.q, mask.kv
    square = q.is_run and kv.is_run and (q.length, q.position) == (kv.length, kv.position)
    if not square or q.absent is not None or kv.absent is not None:
        return None
    return _near(mask.rule)


def _near(rule: Mask) -> Near | None:
    if isinstance(rule, Everyone):
        return -1, -1
    if isinstance(rule, Causal):
        return -1, 0
    if isinstance(rule, Window):
        return (-1 if rule.before is None else rule.before), (
            -1 if rule.after is None else rule.after
        )
    if isinstance(rule, And):
        left, right = _near(rule.left), _near(rule.right)
        if left is not None and right is not None:
            return _nearer(left[0], right[0]), _nearer(left[1], right[1])
    return None


def _nearer(one: int, other: int) -> int:
    return max(one, other) if -1 in (one, other) else min(one, other)


def run(call: Call, found: Rows) -> Result:
    """Do a call of which each segment is served."""
    batch, heads, q_len, _ = call.q.shape
    # (batch, heads, length, width) -> (tokens of all sequences, heads, width)
    q, k, v = (_fit(x).transpose(1, 2).flatten(0, 1) for x in (call.q, call.k, call.v))
    width = max(q.shape[2], v.shape[2])
    q, k, v = (F.pad(x, (0, width - x.shape[2])) for x in (q, k, v))
    output = q.new_zeros(batch * q_len, heads, width)
    groups = _by_window(found, q_len, call.k.shape[2])
    for window, spans in groups.items():
        queries = _tokens([q for q, _ in spans], call.q.device)
        keys = _tokens([kv for _, kv in spans], call.q.device)
        part = _attend(q[queries], k[keys], v[keys], spans, window, call.scale)
        output.index_copy_(0, queries, part)
    output = output.view(batch, q_len, heads, width)[..., : call.v.shape[3]].transpose(1, 2)
    # A batch in which nobody sees anybody has a gradient like any other: of nothing, and so 0.
    return Result(output if groups else output + call.q[..., :0].sum())


def _fit(x: Tensor) -> Tensor:
    """Widths that eight divides, as the kernel wants them."""
    return F.pad(x, (0, -x.shape[3] % 8))


def _by_window(found: Rows, q_len: int, kv_len: int) -> dict[Near, list[tuple[Span, Span]]]:
    """The spans of queries and keys, counted through all sequences, by what they see."""
    spans: dict[Near, list[tuple[Span, Span]]] = {}
    for row, segments in enumerate(found):
        for segment in segments:
            window = near(segment.mask)
            assert window is not None
            (q_from, q_to), (kv_from, kv_to) = segment.q, segment.kv
            q, kv = row * q_len, row * kv_len
            here = (q + q_from, q + q_to), (kv + kv_from, kv + kv_to)
            spans.setdefault(window, []).append(here)
    return spans


def _tokens(spans: Sequence[Span], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(*span) for span in spans]).to(device)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spans: Sequence[tuple[Span, Span]],
    window: Near,
    scale: float,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q_starts, q_longest = _starts([queries for queries, _ in spans])
    kv_starts, kv_longest = _starts([keys for _, keys in spans])
    output = varlen_attn(
        q,
        k,
        v,
        q_starts.to(q.device),
        kv_starts.to(q.device),
        q_longest,
        kv_longest,
        scale=scale,
        window_size=window,
        # A bool also where shapes are symbols, in code compiled for any of them.
        enable_gqa=True if q.shape[1] != k.shape[1] else False,  # noqa: SIM210
    )
    assert isinstance(output, Tensor)
    return output


def _starts(spans: Sequence[Span]) -> tuple[Tensor, int]:
    """Where each stretch begins once they are laid end to end, the end too; and the longest."""
    lengths = [stop - start for start, stop in spans]
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    return starts, max(lengths)
