"""Block-sparse attention on the CPU: only blocks in which somebody sees somebody are computed."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyheads.functional.bias import PlacedBias
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.cpu_kernel import backward_with_lse, forward_with_lse
from manyheads.functional.fold import without_object
from manyheads.functional.fused import fit, widened, with_sinks
from manyheads.functional.lowering import is_mapped
from manyheads.functional.once import once_differentiable
from manyheads.functional.precision import full_precision
from manyheads.functional.tiles import Tile, tiles
from manyheads.masks.plan import BlockPlan, plan
from manyheads.masks.squares import has_no_tensors

BLOCK = 64
"""Queries, and keys, in a block; measured best for a window of 256."""

SHORTEST, DENSEST = 1024, 0.6
"""Where "auto" begins to gain: pairs of this length squared, and this share of them computed.

Half of it where the fused kernel skips the future itself. Measured at 2048.
"""


def _refusals(call: Call) -> Iterator[Refusal]:
    if call.need == "weights":
        yield Refusal("the kernel never holds the weights", "call attention instead")
    if call.softcap is not None:
        yield Refusal("the kernel has no softcap", "leave softcap out")
    if call.dropout:
        yield Refusal("the kernel has no dropout", "set dropout=0")
    if isinstance(call.bias, Tensor):
        yield Refusal("a bias tensor has a number for each pair", "leave bias out")
    if isinstance(call.bias, PlacedBias) and (
        call.bias_needs_grad or call.bias.fold(call.q, call.k, call.mask, call.scale) is None
    ):
        yield Refusal("this bias has a number for each pair", "leave bias out")
    if call.q.device.type not in ("cpu", "meta"):
        yield Refusal("it calls a kernel for the CPU", "move q, k and v there")
    if call.q.device.type == "meta" and not has_no_tensors(call.bound):
        yield Refusal("facts without values plan no blocks", "give tensors on the CPU")
    if torch.compiler.is_compiling():
        yield Refusal("blocks are planned in Python", "call it outside compiled code")
    elif is_mapped():
        yield Refusal("it knows no torch.func transform", "call it outside of them")
    if 0 in call.q.shape or 0 in call.k.shape or 0 in call.v.shape:
        yield Refusal("the kernel needs at least one of everything", "give it some tokens")


def _declines(call: Call) -> str | None:
    mask = call.mask
    if mask is None:
        return "without a mask there is no block to leave out"
    if mask.q.length * mask.kv.length < SHORTEST**2:
        return f"blocks gain nothing below {SHORTEST} x {SHORTEST} pairs"
    if mask.has_no_pairs(past_only=mask.is_below_diagonal):
        return "none but absent tokens are hidden, or the future, which the fused kernel skips"
    if call.q.device.type == "meta" and not has_no_tensors(mask):
        return None
    share = density(call)
    limit = DENSEST / 2 if mask.is_below_diagonal else DENSEST
    if share > limit:
        return f"{share:.0%} of the pairs lie in blocks that are seen, and {limit:.0%} must do"
    return None


def density(call: Call) -> float:
    """The share of all pairs that is computed."""
    plans = _plans(call)
    whole = len(plans) * call.q.shape[2] * call.k.shape[2]
    return sum(each.pairs for each in plans) / whole


def _plans(call: Call) -> tuple[BlockPlan, ...]:
    return plan(call.bound, call.q.shape[0], call.q.shape[1], BLOCK)


class Task(NamedTuple):
    """One call of the kernel.

    Args:
        sequence: Which sequence.
        queries: Which query heads; `keys` are theirs.
        keys: See `queries`.
        tile: Which blocks.
        mask: Added to the scores, (1, 1 or heads, queries, keys); None adds nothing.
    """

    sequence: int
    queries: slice
    keys: slice
    tile: Tile
    mask: Tensor | None


class Work:
    """All that a call has to do, in an order that meets equal masks one after another."""

    def __init__(self, call: Call) -> None:
        """Plan the call."""
        self.batch, self.heads = call.q.shape[:2]
        self.group = self.heads // call.k.shape[1]
        self.dtype = call.q.dtype
        self.plans = _plans(call)
        self.alike = has_no_tensors(call.bound)

    def __iter__(self) -> Iterator[Task]:
        for planned in self.plans:
            queries, keys = slice(None), slice(None)
            if planned.head is not None:
                kv_head = planned.head // self.group
                queries = slice(planned.head, planned.head + 1)
                keys = slice(kv_head, kv_head + 1)
            sequences = range(self.batch) if self.alike else (planned.sequence,)
            for tile in tiles(planned.rows):
                mask = planned.additive(tile.row, self.heads, self.dtype)
                for sequence in sequences:
                    yield Task(sequence, queries, keys, tile, mask)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, work: Work, scale: float
    ) -> tuple[Tensor, Tensor]:
        output = torch.zeros_like(q)
        wide = torch.promote_types(q.dtype, torch.float32)
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=wide)
        for b, queries, keys, tile, mask in work:
            found, found_lse = forward_with_lse(
                tile.queries(q[b, queries]),
                tile.keys(k[b, keys]),
                tile.keys(v[b, keys]),
                mask,
                causal=False,
                scale=scale,
            )
            tile.queries(output[b, queries]).copy_(found)
            tile.queries(lse[b, queries, :, None]).copy_(found_lse[..., None])
        ctx.save_for_backward(q, k, v, output, lse)
        ctx.work, ctx.scale = work, scale
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, output, lse = ctx.saved_tensors
        d_output = torch.zeros_like(output) if d_output is None else d_output
        lse = lse.masked_fill(lse == -torch.inf, 0.0)  # as the kernel itself says it
        d_q, d_k, d_v = (torch.zeros_like(x) for x in (q, k, v))
        for b, queries, keys, tile, mask in ctx.work:
            of_lse = None
            if d_lse is not None:
                of_lse = tile.queries(d_lse[b, queries, :, None])[..., 0]
            part_q, part_k, part_v = backward_with_lse(
                tile.queries(d_output[b, queries]),
                of_lse,
                tile.queries(q[b, queries]),
                tile.keys(k[b, keys]),
                tile.keys(v[b, keys]),
                mask,
                tile.queries(output[b, queries]),
                tile.queries(lse[b, queries, :, None])[..., 0],
                causal=False,
                scale=ctx.scale,
            )
            tile.queries(d_q[b, queries]).copy_(part_q)
            tile.add_to_keys(d_k[b, keys], part_k)
            tile.add_to_keys(d_v[b, keys], part_v)
        return d_q, d_k, d_v, None, None


def _run(call: Call) -> Result:
    dtype, width = call.q.dtype, call.v.shape[3]
    with full_precision(call.q.device):
        call, lacking = without_object(widened(call))
        q, k, v = fit(call.q, call.k, call.v)
        output, lse = _Blocks.apply(q, k, v, Work(call), call.scale)
        lse = lse if lacking is None else lse + lacking
        output = with_sinks(output[..., :width], lse, call.sink_logits)
    return Result(output.to(dtype), lse=lse)


def _heads_of_masks(planned: BlockPlan, heads: int) -> int:
    """For how many heads a mask is written: one is, so that not all of them need be."""
    for row in planned.rows:
        seen = planned.dense(row, heads)
        if seen is not None:
            return seen.shape[1]
    return 0


def _extra_bytes(call: Call) -> int:
    plain, _ = without_object(widened(call))
    q, k, v = fit(plain.q, plain.k, plain.v)
    copies = sum(
        after.nbytes
        for before, after in zip((call.q, call.k, call.v), (q, k, v), strict=True)
        if after is not before
    )
    # Of each call of the kernel: its mask, with the bool of which it is made, its output with
    # log-sum-exp, and keys and values that are not one run.
    most, number = 0, q.element_size()
    heads, kv_heads = q.shape[1], k.shape[1]
    for planned in _plans(plain):
        q_heads, k_heads = (heads, kv_heads) if planned.head is None else (1, 1)
        masked = _heads_of_masks(planned, heads)
        for tile in tiles(planned.rows):
            row = tile.row
            held = 0 if row.likeness is None else masked * row.pairs * (number + 1)
            held += tile.count * q_heads * tile.size * (q.shape[3] + 1) * number
            if len(row.runs) > 1:
                held += 2 * tile.count * k_heads * row.keys * q.shape[3] * number
            most = max(most, held)
    return copies + most


BLOCKS = Backend(
    "blocks",
    "only the blocks in which a query sees a key, through torch's kernel for the CPU",
    _refusals,
    _run,
    _extra_bytes,
    _declines,
    quadratic=lambda call: False,
    least_pairs=SHORTEST**2,
)
