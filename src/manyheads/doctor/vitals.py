"""What is measured of attention at one step of training, and what of it is a bad sign."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.probe import AttentionCall

SHARE, SHARP, MOST, NOTHING, LARGEST = 0.75, 0.999, 0.95, 1e-6, 1e4
"""Of heads; of a query's weight; of all queries' weight; of the loudest head; of scores."""

Signs = list[tuple[str, str, float, str, str]]
"""Code, where, number, unit, expected."""


@dataclass(frozen=True)
class Vitals:
    """One attention call, by heads.

    Args:
        where: The module that made it.
        entropy: Mean over queries, in nats.
        largest: The largest score of all.
        sharp: Share of queries that give nearly all weight to one of several keys.
        fallen: Share of rows in which all queries look at one key, which is not the first.
        loudness: Root mean square of what each head gave; None if it was not seen.
        copies: Pairs of heads that weigh every key alike.
    """

    where: str
    entropy: Tensor
    largest: float
    sharp: Tensor
    fallen: Tensor
    loudness: Tensor | None
    copies: int


def vitals_of(call: AttentionCall) -> Vitals:
    """Measure a call, at a few of its queries."""
    q_len = call.call.q.shape[2]
    rows = torch.linspace(0, q_len - 1, min(q_len, 16), device=call.call.q.device).long().unique()
    weights = call.weights(rows=rows).detach().float()
    several = (weights > 0).sum(dim=-1) > 2
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1).mean(dim=(0, 2))
    sharp = ((weights.amax(dim=-1) > SHARP) & several).sum(dim=(0, 2)) / several.sum(
        dim=(0, 2)
    ).clamp(min=1)
    # A first token that takes what nobody needs is a sink, and healthy.
    received = weights[..., 1:].mean(dim=2)
    fallen = (received > MOST).any(dim=-1).float().mean(dim=0)
    lse = call.lse()[:, :, rows]
    top = (lse + weights.amax(dim=-1).clamp(min=1e-30).log()).nan_to_num(neginf=0.0)
    out = call.output
    loud = None
    if out is not None and out.ndim == 4:
        loud = out.detach().float().square().mean(dim=(0, 2, 3)).sqrt().cpu()
    own = weights.masked_fill(~several[..., None], 0.0).transpose(0, 1).flatten(1)
    near = torch.cdist(own[None], own[None])[0] <= 1e-6 * own.norm(dim=-1).clamp(min=1e-30)
    copies = int((near & (own.norm(dim=-1) > 0)).triu(1).sum())
    return Vitals(
        call.where, entropy.cpu(), float(top.max()), sharp.cpu(), fallen.cpu(), loud, copies
    )


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """The norm of the gradient of each matrix that has one."""
    named = [(name, w.grad) for name, w in model.named_parameters() if w.grad is not None]
    named = [(name, grad) for name, grad in named if grad.ndim == 2]
    if not named:
        return {}
    norms = torch.stack([grad.detach().float().norm().to(named[0][1].device) for _, grad in named])
    return dict(zip([name for name, _ in named], norms.tolist(), strict=True))


def signs_of(vitals: list[Vitals], gradients: dict[str, float]) -> Signs:
    """What of the measures is not as it should be."""
    signs: Signs = []
    for each in vitals:
        if each.largest > LARGEST:
            unit = "is the largest score"
            signs.append(("saturated", each.where, each.largest, unit, f"less than {LARGEST:.0f}"))
        if each.loudness is not None and len(each.loudness) > 1:
            quiet = (each.loudness <= NOTHING * each.loudness.max()).nonzero().flatten().tolist()
            if quiet:
                place = f"{each.where}, head {', '.join(map(str, quiet[:8]))}"
                unit = "heads give nothing" if len(quiet) > 1 else "head gives nothing"
                signs.append(("dead_heads", place, float(len(quiet)), unit, "none"))
        if each.copies:
            unit = "pairs of heads weigh" if each.copies > 1 else "pair of heads weighs"
            unit += " every key alike"
            signs.append(("redundant_heads", each.where, float(each.copies), unit, "none"))
    signs += _of_most(vitals)
    largest = max(gradients.values(), default=0.0)
    dead = [name for name, norm in gradients.items() if norm <= 1e-12 * largest]
    if dead:
        unit = "matrices get no gradient" if len(dead) > 1 else "matrix gets no gradient"
        signs.append(("gradient_dead", ", ".join(dead[:4]), float(len(dead)), unit, "none"))
    return signs


def _of_most(vitals: list[Vitals]) -> Signs:
    """What is wrong with most heads of all calls; of one head it would be healthy."""
    if not vitals:
        return []
    expected = f"less than {SHARE}"
    fallen = float((torch.cat([each.fallen for each in vitals]) > SHARE).float().mean())
    if fallen >= SHARE:
        unit = "of all heads have all queries at one key, which is not the first"
        return [("collapsed", "most heads", fallen, unit, expected)]
    sharp = float((torch.cat([each.sharp for each in vitals]) > SHARE).float().mean())
    if sharp >= SHARE:
        unit = f"of all heads give more than {SHARP} of their weight to one key"
        return [("saturated", "most heads", sharp, unit, expected)]
    return []
