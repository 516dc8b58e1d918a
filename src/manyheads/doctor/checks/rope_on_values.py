"""Values that are turned by their positions."""

import re
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from manyheads.doctor.attentions import attentions
from manyheads.doctor.call import Call
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.copying import placeless
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Let all tokens be the same: whatever the weights are, the outputs are then the same too."""
    for name, part in attentions(patient):
        slot = part.facts.x if part.facts.context is None else part.facts.context
        x = part.base.get(slot)
        known = [n for n, _ in [*part.model.named_parameters(), *part.model.named_buffers()]]
        if not part.has_tokens or x.ndim != 3 or not x.is_floating_point():
            continue
        if any(re.search(r"(^|\.)(pos|pe|wpe)", each) for each in known):
            continue  # places are added to the stream, and may well be seen
        axis = 0 if part.facts.layout == "length" else 1

        def alike(each: Tensor, shape: object = x.shape, axis: int = axis) -> Tensor:
            # Values, and a residual that some layers are handed to add, lie as x does.
            return each.narrow(axis, 0, 1).expand_as(each).clone() if each.shape == shape else each

        call = part.base.map(alike)
        gap = _between_places(part, call)
        # Sinks, decay, sigmoids and convolutions tell places too, without any rotary embedding.
        if gap and not _without_rotary(part, call):
            unit = "of the output depends on the place, though all tokens are the same"
            yield Sign(name, gap, unit, "none: all values are one value")


def _between_places(part: Patient, call: Call) -> float:
    """How far the outputs of equal tokens are apart, as a share of the output."""
    out = part.ask(call)
    return float(part.differs(out, out[:, :1].expand_as(out), allowed=part.close).max())


def _without_rotary(part: Patient, call: Call) -> float:
    """The same, of a copy that turns nothing; of the model itself if nothing in it turns."""
    model = placeless(part.model, call)
    return _between_places(part if model is None else replace(part, model=model), call)


CHECK = Check(
    code="rope_on_values",
    severity="error",
    title="Rotary positions turn the values",
    explanation="Rotary embedding is applied to the values too. Scores then depend on distances as "
    "they should, but what is taken depends on where it stands.",
    cure="Turn queries and keys only.",
    healthy="equal tokens give equal outputs, wherever they stand",
    source="Su et al. 2021, eq. 16 (arXiv:2104.09864)",
    look=look,
)
