"""The bias of a piece of a call: written when its turn comes, so that it is never there whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from manyheads.functional.bias import PlacedBias, check_bias
from manyheads.functional.cut import Piece, Share


@dataclass(frozen=True)
class PieceBias:
    """What is added to the scores of each piece, made from sources: tensors, which may learn.

    Args:
        shares: Which part of each source a piece needs.
        write: Makes the bias of a piece from those parts: four axes, 1 long if nothing changes.
        whole: Whether it needs those of all heads.
    """

    shares: tuple[Share, ...]
    write: Callable[[Piece, Sequence[Tensor]], Tensor]
    whole: bool

    def parts(
        self, piece: Piece, sources: Sequence[Tensor], learn: Sequence[bool] | None = None
    ) -> tuple[Tensor, ...]:
        """The parts of the sources for one piece, as leaves that learn where `learn` says so."""
        there = self._reach(piece)
        taken = (there.take(x, share) for x, share in zip(sources, self.shares, strict=True))
        learn = [False] * len(sources) if learn is None else learn
        return tuple(x.detach().requires_grad_(does) for x, does in zip(taken, learn, strict=True))

    def teach(
        self,
        piece: Piece,
        bias: Tensor,
        parts: Sequence[Tensor],
        d_scores: Tensor,
        totals: Sequence[Tensor | None],
    ) -> None:
        """Add to the gradients of the sources, from that of the scores of one piece."""
        learning = [part for part in parts if part.requires_grad]
        d_bias = d_scores.sum_to_size(bias.shape).to(bias.dtype)
        gradients = iter(torch.autograd.grad(bias, learning, d_bias, allow_unused=True))
        there = self._reach(piece)
        for total, share in zip(totals, self.shares, strict=True):
            if total is not None and (gradient := next(gradients)) is not None:
                there.add(total, share, gradient)

    def _reach(self, piece: Piece) -> Piece:
        if not self.whole:
            return piece
        return piece._replace(heads=slice(None), kv_heads=slice(None))


def piece_bias(
    bias: Tensor | PlacedBias, q: Tensor, k: Tensor, scale: float
) -> tuple[PieceBias, tuple[Tensor, ...]]:
    """How the bias of a call is written for one piece after another, and its sources."""
    if isinstance(bias, PlacedBias):
        return _by_rule(bias, q, k, scale)
    return PieceBias(("pairs",), lambda piece, parts: parts[0], whole=False), (bias,)


def _by_rule(
    bias: PlacedBias, q: Tensor, k: Tensor, scale: float
) -> tuple[PieceBias, tuple[Tensor, ...]]:
    rule, parameters = bias.rule, dict(bias.rule.named_parameters())
    if not rule.reads_content:
        q, k = q.detach(), k.detach()

    def write(piece: Piece, parts: Sequence[Tensor]) -> Tensor:
        q, k, *values = parts
        there = bias.part(piece.sequences, slice(piece.row.start, piece.row.stop), piece.row.runs)
        # The parameters are handed over: by then the rule may hold others.
        named = dict(zip(parameters, values, strict=True))
        places = (q, k, there.q_pos, there.kv_pos)
        written = check_bias(functional_call(rule, named, places, {"scale": scale}), q, k)
        return written if written.shape[1] == 1 else written[:, piece.heads]

    each: list[Share] = ["all" for _ in parameters]
    return PieceBias(("queries", "keys", *each), write, whole=True), (q, k, *parameters.values())
