"""Numbers that half precision cannot hold."""

import copy
from collections.abc import Iterator

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import hide
from manyheads.doctor.patient import Patient
from manyheads.doctor.running import run


def look(patient: Patient) -> Iterator[Sign]:
    """Ask in fp16, with padding where it is known."""
    model = copy.deepcopy(patient.model).half()
    call = patient.base
    if patient.facts.padding is not None or patient.facts.mask is not None:
        call = hide(patient, patient.tokens(-1), call)
    call = call.map(lambda each: each.half() if each.is_floating_point() else each)
    try:
        out = patient.main(run(model, call))
    except Exception as error:
        if "overflow" in str(error):
            yield Sign(type(patient.model).__name__, 65504, f"is the most; {error}", "no overflow")
            return
        raise CannotTell(f"it does not run in fp16 here ({error})") from error
    broken = float((~out.isfinite()).double().mean())
    if broken:
        where = type(patient.model).__name__
        yield Sign(where, broken, "of the output is not finite in fp16", "finite numbers")


CHECK = Check(
    code="half_overflow",
    severity="warning",
    title="Half precision overflows",
    explanation="A number of the model does not exist in fp16, whose largest is 65504: often the "
    "-1e9 that fills hidden scores, or two lowest numbers that are added to -inf.",
    cure="Fill by -inf, or by torch.finfo(scores.dtype).min once and not twice; do the softmax in "
    "fp32.",
    healthy="finite outputs in fp16",
    source="fairseq#3575; NVIDIA/apex#93",
    look=look,
)
