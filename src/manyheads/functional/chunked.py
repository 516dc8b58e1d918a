"""Exact attention by pieces: whatever changes the scores, in memory that grows with the length."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyheads.functional.bias import PlacedBias
from manyheads.functional.call import Backend, Call, Refusal, Result
from manyheads.functional.cut import Piece, cut, most_pairs
from manyheads.functional.drops import Draw, Drops
from manyheads.functional.fused import with_sinks
from manyheads.functional.lowering import is_mapped
from manyheads.functional.once import once_differentiable
from manyheads.functional.piece_bias import PieceBias, piece_bias
from manyheads.functional.precision import full_precision
from manyheads.masks import Bound
from manyheads.masks.squares import has_no_tensors

SHORTEST = 512
"""Where "auto" begins to gain over the reference: pairs of this length squared."""


def _refusals(call: Call) -> Iterator[Refusal]:
    if call.need == "weights":
        yield Refusal("it never holds all weights at once", "call attention instead")
    if call.q.device.type not in ("cpu", "meta"):
        yield Refusal("its pieces are made for the caches of a CPU", "move q, k and v there")
    if call.q.device.type == "meta" and not has_no_tensors(call.bound):
        yield Refusal("facts without values plan no pieces", "give tensors on the CPU")
    if torch.compiler.is_compiling():
        yield Refusal("pieces are planned in Python", "call it outside compiled code")
    elif is_mapped():
        yield Refusal("it knows no torch.func transform", "call it outside of them")
    if 0 in call.q.shape or 0 in call.k.shape or 0 in call.v.shape:
        yield Refusal("there is no piece of nothing", "give it some tokens")


class Norm(NamedTuple):
    """What a softmax takes from its rows, in two numbers, for in one the second may be lost.

    Args:
        peak: (..., 1), the greatest score; 0 in a row that sees nobody.
        total: (..., 1), the sum of exp(score - peak); 0 in such a row, else 1 at least.
    """

    peak: Tensor
    total: Tensor

    @staticmethod
    def of(scores: Tensor) -> "Norm":
        """Of rows of scores, which become exp(score - peak)."""
        peak = scores.amax(dim=-1, keepdim=True)
        peak.masked_fill_(peak == -torch.inf, 0.0)
        return Norm(peak, scores.sub_(peak).exp_().sum(dim=-1, keepdim=True))

    def lse(self) -> Tensor:
        """Log-sum-exp of each row; -inf where nobody is seen."""
        return (self.peak + self.total.log()).squeeze(-1)


class _Weighed(NamedTuple):
    """One piece on its way from scores to the output.

    Args:
        rows: (sequences, kv_heads, rows, head_dim), queries; heads that share keys are more rows.
        keys: (sequences, kv_heads, keys, head_dim).
        weights: (sequences, heads, queries, keys) before dropout.
        norm: What made them of the scores.
        capped: tanh(scores / softcap), if there is one.
    """

    rows: Tensor
    keys: Tensor
    weights: Tensor
    norm: "Norm"
    capped: Tensor | None


@dataclass(frozen=True)
class Recipe:
    """How the weights of a call are made, a piece at a time.

    Args:
        bound: Who may see whom.
        softcap: Bounds the scores.
        bias: What is added to them.
        drops: Which weights are dropped.
    """

    bound: Bound
    softcap: float | None
    bias: PieceBias | None
    drops: Drops | None

    def pieces(self, q: Tensor, k: Tensor) -> Iterator[tuple[Piece, Draw | None]]:
        """The pieces of a call, each with what draws its drops."""
        if q.is_meta:
            return  # There are shapes alone, and those are known.
        draw = None if self.drops is None else self.drops.start()
        whole = self.bias is not None and self.bias.whole
        for piece in cut(self.bound, (*q.shape[:2], k.shape[1]), q.dtype, whole=whole):
            yield piece, draw

    def weigh(
        self, piece: Piece, q: Tensor, k: Tensor, bias: Tensor | None, norm: Norm | None = None
    ) -> _Weighed:
        """The weights of a piece, from queries that are multiplied by the scale already.

        Args:
            piece: Which.
            q: All queries.
            k: All keys.
            bias: What is added in the piece.
            norm: That of all rows, if it is known.
        """
        keys, capped = piece.take(k, "keys"), None
        rows = _by_kv_head(piece.take(q, "queries"), keys)
        scores = _by_head(rows @ keys.mT, piece)
        if self.softcap is not None:
            capped = scores.div_(self.softcap).tanh_()
            scores = capped * self.softcap
        added = piece.mask if bias is None else bias
        if bias is not None and piece.mask is not None:
            # In the place of the bias, which may be NaN where it is hidden.
            added = bias.masked_fill(piece.mask == -torch.inf, -torch.inf)
        if added is not None:
            scores.add_(added)
        if norm is None:
            own = Norm.of(scores)
        else:
            own = Norm(*(piece.take(x, "queries") for x in norm))
            scores.sub_(own.peak).exp_()
        return _Weighed(rows, keys, scores.div_(own.total.clamp(min=1.0)), own, capped)


def _by_kv_head(x: Tensor, keys: Tensor) -> Tensor:
    # (sequences, heads, queries, width) -> (sequences, kv_heads, rows, width)
    return x.reshape(*keys.shape[:2], -1, x.shape[3])


def _by_head(x: Tensor, piece: Piece) -> Tensor:
    # (sequences, kv_heads, rows, width) -> (sequences, heads, queries, width)
    return x.view(x.shape[0], -1, piece.row.stop - piece.row.start, x.shape[3])


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, *sources: Tensor
    ) -> tuple[Tensor, Tensor]:
        output = q.new_zeros(*q.shape[:3], v.shape[3])
        norm = Norm(q.new_zeros(*q.shape[:3], 1), q.new_zeros(*q.shape[:3], 1))
        for piece, draw in recipe.pieces(q, k):
            bias = None
            if recipe.bias is not None:
                bias = recipe.bias.write(piece, recipe.bias.parts(piece, sources))
            _, _, weights, own, _ = recipe.weigh(piece, q, k, bias)
            if draw is not None:
                weights.mul_(draw(weights))
            values = piece.take(v, "keys")
            mixed = _by_head(_by_kv_head(weights, values) @ values, piece)
            piece.take(output, "queries").copy_(mixed)
            for whole, found in zip(norm, own, strict=True):
                piece.take(whole, "queries").copy_(found)
        if recipe.drops is not None:
            output.mul_(recipe.drops.factor)
        ctx.save_for_backward(q, k, v, output, *norm, *sources)
        ctx.recipe = recipe
        ctx.set_materialize_grads(False)
        return output, norm.lse()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, output, peak, total, *sources = ctx.saved_tensors
        recipe, learn = ctx.recipe, ctx.needs_input_grad[4:]
        d_output = torch.zeros_like(output) if d_output is None else d_output
        # The gradient of a score is its weight * (that of the weight - this).
        common = (d_output * output).sum(dim=-1, keepdim=True)
        if d_lse is not None:
            common -= d_lse[..., None].masked_fill(total == 0, 0.0)
        if recipe.drops is not None:
            d_output = d_output * recipe.drops.factor
        # With the keys last, products come out faster.
        d_q, d_k, d_v = torch.zeros_like(q), _zeros(k.mT).mT, _zeros(v.mT).mT
        totals = [_zeros(x) if does else None for x, does in zip(sources, learn, strict=True)]
        with full_precision(q.device):
            for piece, draw in recipe.pieces(q, k):
                bias, parts = None, ()
                if recipe.bias is not None:
                    parts = recipe.bias.parts(piece, sources, learn)
                    with torch.enable_grad():
                        bias = recipe.bias.write(piece, parts)
                added = bias if bias is None else bias.detach()
                at = recipe.weigh(piece, q, k, added, Norm(peak, total))
                d_scores = _through_values(piece, at, v, draw, d_output, common, d_v)
                if bias is not None and bias.requires_grad:
                    recipe.bias.teach(piece, bias, parts, d_scores, totals)
                _through_scores(piece, at, d_scores, d_q, d_k)
        return None, d_q, d_k, d_v, *totals


def _through_values(
    piece: Piece,
    at: _Weighed,
    v: Tensor,
    draw: Draw | None,
    d_output: Tensor,
    common: Tensor,
    d_v: Tensor,
) -> Tensor:
    """Add to the gradient of the values, and return that of the scores with their bias."""
    values, mixing = piece.take(v, "keys"), at.weights
    d_mixed = _by_kv_head(piece.take(d_output, "queries"), values)
    d_scores = _by_head(d_mixed @ values.mT, piece)
    if draw is not None:
        kept = draw(at.weights)
        d_scores.mul_(kept)
        mixing = kept.mul_(at.weights)
    piece.add(d_v, "keys", (d_mixed.mT @ _by_kv_head(mixing, values)).mT)
    return d_scores.sub_(piece.take(common, "queries")).mul_(at.weights)


def _through_scores(piece: Piece, at: _Weighed, d_scores: Tensor, d_q: Tensor, d_k: Tensor) -> None:
    """Add to the gradients of queries and keys; changes `d_scores`."""
    if at.capped is not None:
        d_scores.addcmul_(d_scores * at.capped, at.capped, value=-1.0)
    d_raw = _by_kv_head(d_scores, at.keys)
    piece.add(d_q, "queries", _by_head(d_raw @ at.keys, piece))
    piece.add(d_k, "keys", (at.rows.mT @ d_raw).mT)


def _zeros(x: Tensor) -> Tensor:
    return x.new_zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32))


def _run(call: Call) -> Result:
    with full_precision(call.q.device):
        q, k, v = (x if x.dtype == torch.float64 else x.float() for x in (call.q, call.k, call.v))
        bias: PieceBias | None = None
        sources: tuple[Tensor, ...] = ()
        if call.bias is not None:
            bias, sources = piece_bias(call.bias, q, k, call.scale)
        drops = Drops.of(call.dropout) if call.dropout else None
        recipe = Recipe(call.bound, call.softcap, bias, drops)
        output, lse = _Chunked.apply(recipe, q * call.scale, k, v, *sources)
        output = with_sinks(output, lse, call.sink_logits)
    return Result(output.to(call.q.dtype), lse=lse)


def _declines(call: Call) -> str | None:
    if call.q.shape[2] * call.k.shape[2] < SHORTEST**2:
        return f"pieces gain nothing below {SHORTEST} x {SHORTEST} pairs"
    return None


def _extra_bytes(call: Call) -> int:
    q, k, v = call.q, call.k, call.v
    number = 8 if q.dtype == torch.float64 else 4
    copied = q.numel() + (k.numel() + v.numel() if q.element_size() < 4 else 0)
    whole = isinstance(call.bias, PlacedBias)
    most = most_pairs(call.bound, (*q.shape[:2], k.shape[1]), whole=whole)
    # Scores; drawn drops with the words that they are drawn from; what is capped; the bias.
    held = 1 + 1.5 * bool(call.dropout) + (call.softcap is not None) + (call.bias is not None)
    return number * (copied + int(held * most))


CHUNKED = Backend(
    "chunked",
    "a block of queries at a time, computed anew for the gradient: never all pairs at once",
    _refusals,
    _run,
    _extra_bytes,
    _declines,
    quadratic=lambda call: False,
)
