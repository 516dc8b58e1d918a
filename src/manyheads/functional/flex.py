"""torch's FlexAttention, compiled: any mask by blocks, and changes of scores, in linear memory."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.functional.bias import PlacedBias
from manyheads.functional.block_mask import (
    BLOCK,
    OfPairs,
    OneSide,
    block_mask,
    pair_function,
    seen_blocks,
)
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.fused import FUSED, with_sinks
from manyheads.functional.lowering import is_mapped
from manyheads.functional.precision import full_precision
from manyheads.masks import Bound, Mask
from manyheads.masks.algebra import Everyone
from manyheads.masks.facts import Tokens
from manyheads.masks.plan import plan
from manyheads.masks.squares import has_no_tensors

LEAST_PAIRS, DENSEST = 512**2, 0.5
"""Where "auto" takes it: at least so many pairs, and at most this share of their blocks seen.

Not measured yet.
"""

NARROWEST = 16
"""The least head_dim of torch's kernel for CUDA."""


def _refusals(call: Call) -> Iterator[Refusal]:
    if call.need == "weights":
        yield Refusal("the kernel never holds the weights", "call attention instead")
    if call.dropout:
        yield Refusal("the kernel has no dropout", "set dropout=0")
    if torch.compiler.is_compiling():
        yield Refusal("blocks are planned in Python", "call it outside compiled code")
    elif is_mapped():
        yield Refusal("it knows no torch.func transform", "call it outside of them")
    if 0 in call.q.shape or 0 in call.k.shape or 0 in call.v.shape:
        yield Refusal("the kernel needs at least one of everything", "give it some tokens")
    yield from _device_refusals(call)


def _device_refusals(call: Call) -> Iterator[Refusal]:
    device = call.q.device.type
    if device not in ("cpu", "cuda"):
        yield Refusal(f"it reads tensors on the CPU and CUDA, not on {device}", "make them on CUDA")
    if call.q.dtype == torch.float64:
        yield Refusal("it has no kernel for float64", "convert q, k and v to float32")
    if device == "cuda" and not _has_triton():
        yield Refusal("torch finds no Triton for this device", "install triton")
    if device == "cpu":
        if call.needs_grad:
            yield Refusal("it has no gradient on the CPU", "call it under torch.no_grad()")
        if call.need == "lse" or call.sink_logits is not None:
            yield Refusal("it has no log-sum-exp on the CPU", "leave lse and sink_logits out")
        if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
            yield Refusal("its kernel for the CPU needs AVX2", "move q, k and v to CUDA")


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return has_triton()


def _declines(call: Call) -> str | None:
    if next(FUSED.refusals(call), None) is not None:
        return None
    if _distance_bias(call) and FUSED.quadratic(call):
        return None
    mask = call.mask
    if mask is None or mask.is_causal or mask.has_no_pairs():
        return "the fused kernel needs nothing written out for this mask"
    if not has_no_tensors(mask):
        return "its facts of tokens would be read from the device at each call"
    share = _density(mask, call)
    return None if share <= DENSEST else f"{share:.0%} of the blocks are seen, {DENSEST:.0%} may be"


def _density(mask: Bound, call: Call) -> float:
    plans = plan(mask, call.q.shape[0], call.q.shape[1], BLOCK)
    return sum(each.pairs for each in plans) / (len(plans) * mask.q.length * mask.kv.length)


def _distance_bias(call: Call) -> bool:
    bias = call.bias
    return isinstance(bias, PlacedBias) and bias.rule.of_distance(call.q) is not None


class Recipe(NamedTuple):
    """The numbers of a call that are part of its program.

    Args:
        rule: The mask's rule.
        scale: Multiplies the scores.
        softcap: Bounds the scores.
    """

    rule: Mask
    scale: float
    softcap: float | None


# A compiler takes a number that it finds in a global for a constant; one that it finds in an
# argument becomes an unknown once it changes, which these kernels cannot bear.
_RECIPES: dict[str, Recipe] = {}
_PROGRAMS: dict[Recipe, tuple[str, Callable[..., Any]]] = {}
_PROGRAMS_KEPT, _SHAPES_KEPT = 64, 64
_COUNT = itertools.count()


def _program(recipe: Recipe) -> tuple[str, Callable[..., Any]]:
    """The name of a recipe, and FlexAttention compiled for it alone."""
    if recipe not in _PROGRAMS:
        if len(_PROGRAMS) >= _PROGRAMS_KEPT:
            name, _ = _PROGRAMS.pop(next(iter(_PROGRAMS)))
            del _RECIPES[name]
        name = f"recipe {next(_COUNT)}"
        _RECIPES[name] = recipe
        # Without a fallback: uncompiled, it would write all scores out.
        compiled = torch.compile(  # type: ignore[call-overload]
            _attend, fullgraph=True, isolate_recompiles=True, recompile_limit=_SHAPES_KEPT
        )
        _PROGRAMS[recipe] = name, compiled
    return _PROGRAMS[recipe]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Callable[..., Tensor] | None,
    mask: Any,
    name: str,
    *,
    need_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    scale, grouped = _RECIPES[name].scale, q.shape[1] != k.shape[1]
    if not need_lse:
        return flex_attention(q, k, v, score, mask, scale, grouped), None
    output, aux = flex_attention(
        q, k, v, score, mask, scale, grouped, return_aux=AuxRequest(lse=True)
    )
    return output, aux.lse


def _score_function(call: Call, name: str) -> Callable[..., Tensor] | None:
    """What becomes of one score, as a plain function of five; None if nothing does."""
    if call.softcap is None and call.bias is None:
        return None
    added = _added(call)

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        softcap = _RECIPES[name].softcap
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added(batch, head, query, key)

    return change


def _added(call: Call) -> Callable[..., Tensor] | None:
    """The bias of one pair."""
    if call.bias is None:
        return None
    if isinstance(call.bias, PlacedBias):
        function = call.bias.rule.of_distance(call.q)
        if function is not None:
            q = OneSide.of(Tokens(call.q.shape[2], call.bias.q_pos, device=call.q.device))
            kv = OneSide.of(Tokens(call.k.shape[2], call.bias.kv_pos, device=call.q.device))
            return lambda batch, head, query, key: function(
                head, q.place(batch, query) - kv.place(batch, key)
            )
    bias = call.written_bias()
    assert bias is not None
    return OfPairs.of(bias).at


def _run(call: Call) -> Result:
    lse_needed = call.need == "lse" or call.sink_logits is not None
    rule = Everyone() if call.mask is None else call.mask.rule
    name, program = _program(Recipe(rule, call.scale, call.softcap))
    mask = None
    if call.mask is not None:
        sees = pair_function(call.mask, lambda: _RECIPES[name].rule)
        mask = block_mask(call.mask, call.q.shape[0], call.q.shape[1], sees)
    with full_precision(call.q.device):
        output, lse = program(
            *_fit(call), _score_function(call, name), mask, name, need_lse=lse_needed
        )
    output = output[..., : call.v.shape[3]]
    if lse is not None:
        output = with_sinks(output, lse, call.sink_logits)
    return Result(output, lse=lse)


def _fit(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (_at_least(x, NARROWEST) for x in (call.q, call.k, call.v))
    if call.needs_grad:
        return q, k, v
    return q.detach(), k.detach(), v.detach()  # on the CPU torch asks no more than this


def _at_least(x: Tensor, width: int) -> Tensor:
    """x without gaps or repeats, zeros added up to a width."""
    if x.shape[3] < width:
        return F.pad(x, (0, width - x.shape[3]))
    return x if x.stride(3) == 1 and 0 not in x.stride() else x.contiguous()


def _extra_bytes(call: Call) -> int:
    fitted = zip((call.q, call.k, call.v), _fit(call), strict=True)
    extra = sum(after.nbytes for before, after in fitted if after.data_ptr() != before.data_ptr())
    if call.mask is not None:
        some, _ = seen_blocks(call.mask, call.q.shape[0], call.q.shape[1])
        extra += 4 * 4 * some.numel()  # in part or whole, by query and by key
    if _quadratic(call):
        bias = call.written_bias()
        extra += 0 if bias is None else bias.nbytes
    return extra


def _quadratic(call: Call) -> bool:
    return isinstance(call.bias, PlacedBias) and not _distance_bias(call)


FLEX = Backend(
    "flex",
    "torch's FlexAttention, compiled on first use: blocks of any mask, softcap and bias by pairs",
    _refusals,
    _run,
    _extra_bytes,
    _declines,
    _quadratic,
    LEAST_PAIRS,
    devices=("cuda",),
)
