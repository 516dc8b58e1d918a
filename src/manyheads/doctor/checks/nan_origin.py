"""NaN or infinity in the output of an ordinary input, and where it begins."""

from collections.abc import Iterator
from contextlib import suppress

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.output import floats
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Follow the first number that is not finite back to the part that made it."""
    broken = ~patient.out.isfinite()
    if not broken.any():
        return
    where = type(patient.model).__name__
    for name, module, inputs, output in patient.outputs_of_parts(patient.base):
        clean = all(bool(each.isfinite().all()) for each in floats(inputs))
        if clean and not all(bool(each.isfinite().all()) for each in floats(output)):
            where = f"{name or where} ({type(module).__name__})"
            break
    share = float(broken.double().mean())
    unit = "of the output is NaN or infinite"
    yield Sign(where, share, unit, "finite numbers only", _empty_row(patient))


def _empty_row(patient: Patient) -> str:
    """What to look at, if a query sees no key; torch's fast paths make NaN of it, unwatched."""
    with suppress(CannotTell):
        for each in observed(patient):
            seen = each.seen.weights().detach().nan_to_num()  # what the mask or a bias of -inf left
            empty = (seen == 0).all(dim=-1)
            if empty.any():
                return (
                    f"Query {int(empty.nonzero()[0, -1])} of {each.where} sees no key: is its mask "
                    f"the wrong way round? True hides in nn.MultiheadAttention, and shows in "
                    f"scaled_dot_product_attention."
                )
    return ""


CHECK = Check(
    code="nan_origin",
    severity="error",
    title="NaN or infinity out of finite numbers",
    explanation="A part turns finite inputs into NaN or infinity, which then spreads to every "
    "token that reads it, and to every gradient.",
    cure="Look at the named part: a softmax over a row that is all -inf, a division by zero, an "
    "exponential or a dtype that overflows.",
    healthy="finite outputs",
    source="IEEE 754-2019, section 6.2",
    look=look,
)
