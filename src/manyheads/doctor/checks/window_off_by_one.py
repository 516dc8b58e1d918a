"""A window that is one token wider or narrower than said."""

from collections.abc import Iterator

import torch

from manyheads.doctor import evidence
from manyheads.doctor.attentions import count_attentions
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Measure how far back a change is felt; each layer adds one window's reach."""
    window = patient.facts.window
    assert window is not None
    layers = count_attentions(patient.model)
    expected = layers * (window - 1)
    if not patient.has_tokens or patient.length <= expected + layers:
        raise CannotTell(
            f"rows of {patient.length} tokens are too short for {layers} layers with windows of "
            f"{window}: give an example of {expected + layers + 1} tokens or more"
        )
    places = torch.arange(patient.length)
    back = places[:, None] - places[None, :]
    reach = int(back[(patient.influence > 0) & (back >= 0)].max())
    if reach == expected:
        return
    found, rest = divmod(reach, layers)
    if rest or abs(found + 1 - window) > 1:
        raise CannotTell(f"a change is felt {reach} tokens later, which is no window's reach")
    where = type(patient.model).__name__ + (f", {layers} layers alike" if layers > 1 else "")
    yield Sign(where, found + 1, "keys are in the window", f"{window}, as declared")


CHECK = Check(
    code="window_off_by_one",
    severity="error",
    title="The window is off by one",
    explanation="A query sees one key more or fewer than the window says. Some libraries count the "
    "query's own key in the window and others count neighbours only, so a number that is passed on "
    "from one to the other shifts by one.",
    cure="With q_pos - kv_pos < window the query's own key counts; FlashAttention's window_size is "
    "(window - 1, 0).",
    healthy="as many keys as declared, the query's own included",
    source="huggingface/transformers#39408",
    look=look,
    draw=evidence.of_window,
    needs=("window",),
)
