"""A fresh model that is sure of nonsense."""

import math
from collections.abc import Iterator

import torch

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Compare the loss on random tokens with that of guessing."""
    if patient.facts.fresh is not True:
        raise CannotTell("the weights are not known to be untrained: declare Facts(fresh=True)")
    ids = patient.kinds[patient.facts.x].ids
    classes = patient.out.shape[-1]
    if ids is None or not patient.has_tokens or not 0 <= classes - len(ids) <= 16:
        raise CannotTell("the output is not one number for each word of the vocabulary")
    logits = patient.out.double().flatten(0, 1)
    generator = torch.Generator().manual_seed(9000 + patient.seed)
    places = torch.randint(len(ids), (len(logits),), generator=generator)
    loss = float(torch.nn.functional.cross_entropy(logits, ids[places]))
    guessing = math.log(classes)
    if loss > guessing + 1:
        where = type(patient.model).__name__
        yield Sign(where, loss, "nats is the loss on random tokens", f"about {guessing:.3g}")


CHECK = Check(
    code="init_loss",
    severity="warning",
    title="The first loss is far above guessing",
    explanation="A model that was just drawn should know nothing and say so: its loss is ln of the "
    "vocabulary. A higher one means logits that are too large, and hundreds of steps spent on "
    "unlearning them.",
    cure="Draw the output matrix smaller: std 0.02, or d_model ** -0.5 where it is tied to an "
    "embedding (nn.Embedding draws std 1).",
    healthy="ln(vocabulary), to about half a nat",
    source="Radford et al. 2019, section 2.3, on initialisation",
    look=look,
)
