"""Training mode and eval mode that disagree without any dropout."""

from collections.abc import Iterator

from torch import nn

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.copying import without_dropout
from manyheads.doctor.hiding import hide
from manyheads.doctor.patient import Patient
from manyheads.doctor.training import in_training


def look(patient: Patient) -> Iterator[Sign]:
    """Take all dropout out, and ask in both modes."""
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in patient.model.modules()):
        raise CannotTell("batch norm differs between training and eval on purpose")
    model = without_dropout(patient.model)
    call, hidden = patient.base, patient.tokens()
    if patient.facts.padding is not None and patient.facts.causal is not True:
        hidden = patient.tokens(slice(-max(1, patient.length // 4), None))
        call = hide(patient, hidden)
    trained = [
        patient.main(in_training(patient, call, model=model, seed=seed)).detach() for seed in (0, 1)
    ]
    if trained[0].shape == trained[1].shape and patient.differs(*trained).any():
        raise CannotTell("training draws random numbers that are no dropout")
    out = patient.ask(call, model=model)
    where = type(patient.model).__name__
    if out.shape != trained[0].shape:
        unit = f"tokens come back in eval, and {trained[0].shape[1]} in training"
        yield Sign(where, out.shape[1], unit, "as many")
        return
    gap = patient.differs(out, trained[0], allowed=patient.close)
    gap = gap.masked_fill(hidden, 0) if patient.has_tokens else gap
    if gap.any():
        unit = "of the output differs between training and eval, without dropout"
        yield Sign(where, float(gap.max()), unit, "rounding only")


CHECK = Check(
    code="train_eval_mismatch",
    severity="error",
    title="Training and eval compute different things",
    explanation="With all dropout taken out, the model still answers differently in training and "
    "in eval: two code paths, one of which was never compared with the other.",
    cure="Look for if self.training, and for paths that are taken without gradients only.",
    healthy="equal outputs, to rounding",
    source="pytorch/pytorch#97111",
    look=look,
)
