"""Padded and packed batches, computed without their padding.

On the CPU a stretch at a time; on CUDA all stretches laid end to end, in torch's varlen kernel.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from manyheads.functional import packed
from manyheads.functional.blocks import BLOCKS
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.fused import FUSED
from manyheads.functional.lowering import is_mapped
from manyheads.masks import Bound
from manyheads.masks.documents import SameDocument
from manyheads.masks.segments import Segment, Span, segments

SHORTEST, FULLEST = 128, 0.8
"""Where "auto" begins to gain: the mean of a segment's lengths, and the share of pairs in any."""


def _refusals(call: Call) -> Iterator[Refusal]:
    if call.need == "weights":
        yield Refusal("the kernel never holds the weights", "call attention instead")
    if call.softcap is not None:
        yield Refusal("the kernel has no softcap", "leave softcap out")
    if call.dropout:
        yield Refusal("the kernel has no dropout", "set dropout=0")
    if call.bias is not None:
        yield Refusal("a bias is of whole rows", "leave bias out")
    if torch.compiler.is_compiling():
        yield Refusal("segments are found in Python", "call it outside compiled code")
        return
    if is_mapped():
        yield Refusal("it knows no torch.func transform", "call it outside of them")
        return
    if 0 in call.q.shape or 0 in call.k.shape or 0 in call.v.shape:
        yield Refusal("the kernel needs at least one of everything", "give it some tokens")
    elif call.q.device.type not in ("cpu", "cuda"):
        yield Refusal("segments are found by reading values", "give tensors that have values")
    elif call.mask is None or not _has_segments(call.mask):
        yield Refusal("nothing is padded or packed", "add Padding or Documents to the mask")
    elif _segments(call) is None:
        yield Refusal("a document of this mask is not one stretch", "sort its tokens by document")
    elif call.q.device.type == "cuda" and not packed.serves(_segments(call) or ()):
        yield Refusal("the kernel knows no mask but Causal and Window", "leave the rest out")
    if call.q.device.type == "cuda":
        yield from packed.refusals(call)


def _has_segments(mask: Bound) -> bool:
    if mask.pairs:
        return False
    packed = any(isinstance(part, SameDocument) for part in mask.rule.parts())
    return packed or mask.q.absent is not None or mask.kv.absent is not None


def _declines(call: Call) -> str | None:
    batch, _, q_len, _ = call.q.shape
    kv_len = call.k.shape[2]
    if call.mask is None or not _has_segments(call.mask):
        return "nothing is padded or packed"
    if batch * q_len * kv_len < SHORTEST**2 or call.q.device.type == "meta":
        return f"segments shorter than {SHORTEST} tokens gain nothing"
    found = _segments(call)
    if found is None:
        return "a document of this mask is not one stretch"
    every = [segment for row in found for segment in row]
    if sum(segment.q[1] - segment.q[0] for segment in every) < SHORTEST * len(every):
        return f"segments shorter than {SHORTEST} tokens gain nothing"
    whole = batch * q_len * kv_len / (2 if call.mask.is_below_diagonal else 1)
    share = sum(segment.pairs for segment in every) / whole
    if share > FULLEST:
        return f"{share:.0%} of the pairs lie in a segment, and {FULLEST:.0%} must do"
    return None


def _segments(call: Call) -> tuple[list[Segment], ...] | None:
    """The segments of each sequence; None if there are none."""
    mask, batch = call.mask, call.q.shape[0]
    assert mask is not None
    if ("segments", batch) not in mask.plans:
        known = mask.on_cpu()
        found = [segments(known, sequence) for sequence in range(batch)]
        mask.plans["segments", batch] = None if None in found else tuple(found)
    return mask.plans["segments", batch]


def _run(call: Call) -> Result:
    found = _segments(call)
    assert found is not None
    if call.q.device.type == "cuda":
        return packed.run(call, found)
    rows = zip(call.q.unbind(), call.k.unbind(), call.v.unbind(), found, strict=True)
    results = [_sequence(call._replace(q=q, k=k, v=v), these) for q, k, v, these in rows]
    # Of nothing, and so 0; a batch in which nobody sees anybody has a gradient like any other.
    nothing = call.q[..., :0].sum()
    output = torch.stack([result.output for result in results]) + nothing
    lses = [result.lse for result in results if result.lse is not None]
    return Result(output, lse=torch.stack(lses) + nothing if lses else None)


def _sequence(call: Call, found: Sequence[Segment]) -> Result:
    """One sequence, of which q, k and v have three dimensions."""
    q = _split(call.q, [segment.q for segment in found])
    keys = sorted({segment.kv for segment in found})
    k, v = _split(call.k, keys), _split(call.v, keys)
    outputs: list[Tensor] = []
    lses: list[Tensor] = []
    done = 0
    for segment, queries in zip(found, q, strict=True):
        at = keys.index(segment.kv)
        part = _attend(call, queries[None], k[at][None], v[at][None], segment.mask)
        _fill(call, outputs, lses, segment.q[0] - done)
        outputs.append(part.output[0])
        # Some parts give it unasked, and then not all of them do.
        if call.need == "lse" and part.lse is not None:
            lses.append(part.lse[0])
        done = segment.q[1]
    _fill(call, outputs, lses, call.q.shape[1] - done)
    return Result(torch.cat(outputs, dim=1), lse=torch.cat(lses, dim=1) if lses else None)


def _attend(call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Bound) -> Result:
    part = call._replace(q=q, k=k, v=v, mask=None if mask.is_plain else mask)
    gains = BLOCKS.declines(part) is None and next(BLOCKS.refusals(part), None) is None
    return (BLOCKS if gains else FUSED).run(part)


def _fill(call: Call, outputs: list[Tensor], lses: list[Tensor], length: int) -> None:
    # Queries that see nobody.
    if length:
        heads = call.q.shape[0]
        outputs.append(call.q.new_zeros(heads, length, call.v.shape[2]))
        if call.need == "lse":
            wide = torch.promote_types(call.q.dtype, torch.float32)
            lses.append(call.q.new_full((heads, length), -torch.inf, dtype=wide))


def _split(x: Tensor, spans: Sequence[Span]) -> list[Tensor]:
    """The spans of (heads, length, width): one split, whose gradient is one concatenation."""
    sizes, wanted, done = [], [], 0
    for start, stop in spans:
        if start > done:
            sizes.append(start - done)
        wanted.append(len(sizes))
        sizes.append(stop - start)
        done = stop
    pieces = x.split([*sizes, x.shape[1] - done], dim=1)
    return [pieces[index] for index in wanted]


def _part_calls(call: Call) -> Iterator[Call]:
    for row, found in enumerate(_segments(call) or ()):
        for segment in found:
            q, kv = slice(*segment.q), slice(*segment.kv)
            mask = None if segment.mask.is_plain else segment.mask
            yield call._replace(
                q=call.q[row : row + 1, :, q],
                k=call.k[row : row + 1, :, kv],
                v=call.v[row : row + 1, :, kv],
                mask=mask,
            )


def _extra_bytes(call: Call) -> int:
    if call.q.device.type == "cuda":
        # Queries, keys and values without gaps, and two outputs.
        return 2 * call.q.nbytes + call.k.nbytes + call.v.nbytes + call.q.nbytes
    most = 0
    for part in _part_calls(call):
        chosen = BLOCKS if BLOCKS.declines(part) is None else FUSED
        most = max(most, chosen.extra_bytes(part))
    # Each segment's output stands until they are joined, and so do those of the sequences.
    return most + 2 * call.q[..., :1].numel() * call.v.shape[3] * call.q.element_size()


def _quadratic(call: Call) -> bool:
    if call.q.device.type == "cuda":
        return False
    parts = list(_part_calls(call))
    return any(FUSED.quadratic(part) and BLOCKS.declines(part) is not None for part in parts)


VARLEN = Backend(
    "varlen",
    "padding left out and documents apart: each stretch alone, or all in torch's varlen on CUDA",
    _refusals,
    _run,
    _extra_bytes,
    _declines,
    _quadratic,
    SHORTEST**2,
)
