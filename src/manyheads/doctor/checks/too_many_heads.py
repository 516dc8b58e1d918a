"""More heads than the example gives different things to look at."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient

LEAST, SHARE = 4, 0.4


def look(patient: Patient) -> Iterator[Sign]:
    """Count how many different maps the heads of each layer make of the example itself."""
    seen = [each.seen.weights().detach() for each in observed(replace(patient, kinds={}))]
    seen = [each.double() for each in seen if each.shape[1] >= LEAST and each.shape[-1] > LEAST]
    if not seen:
        raise CannotTell(f"no layer has {LEAST} heads and more keys than that")
    shares = [_different(each) / (each.shape[1] - 1) for each in seen]
    share = sum(shares) / len(shares)
    if share < SHARE:
        heads = seen[0].shape[1]
        unit = f"of {heads} heads a layer differ in what they look at, in {len(seen)} layers"
        enough = f"more than {1 + SHARE * (heads - 1):.3g}"
        yield Sign("all layers", 1 + share * (heads - 1), unit, enough)


def _different(weights: Tensor) -> float:
    """How many heads differ from their mean: exp of the entropy of their likeness' spectrum."""
    # What the first key takes is what nobody needs, and alike in healthy heads.
    maps = weights[..., 1:].transpose(0, 1).flatten(1)
    maps = maps - maps.mean(dim=0)
    spectrum = torch.linalg.svdvals(maps).square()
    spectrum = spectrum / spectrum.sum().clamp(min=1e-30)
    return float(torch.special.entr(spectrum).sum().exp())


CHECK = Check(
    code="too_many_heads",
    severity="note",
    title="More heads than things to look at",
    explanation="On this example heads fall into a few groups that look at the same: the others "
    "cost width, memory and time, and could be left out.",
    cure="Take fewer and wider heads, or prune those of low importance (manyheads.lens.importance);"
    " with more, or more varied, data they may differ yet.",
    healthy="heads of which most differ",
    source="Michel et al. 2019 (arXiv:1905.10650); Friedman and Dieng 2023, on counting by the "
    "entropy of a spectrum (arXiv:2210.02410)",
    look=look,
)
