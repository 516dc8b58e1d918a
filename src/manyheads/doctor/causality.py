"""Whether a model is meant to be causal, by what it does."""

from dataclasses import replace

import torch

from manyheads.doctor.check import CannotTell
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient


def with_causality(patient: Patient) -> Patient:
    """The patient, known to be causal or not where it can be told.

    A causal model with a fault still sees the past far more than the future, or the other way
    round; a model that is not meant to be causal sees both alike.
    """
    facts = patient.facts
    if facts.causal is not None or not patient.has_tokens or patient.length < 3:
        return patient
    named = getattr(getattr(patient.model, "config", None), "is_decoder", None)
    if named is True and not facts.context:
        return patient.knowing(causal=True)
    if _has_triangle(patient):
        return patient.knowing(causal=True)
    try:
        # Whatever holes a padding makes, they are not causality.
        influence = replace(patient).influence
        # Less than a thousandth of what the past does is a leak, and no intention.
        seen = influence > 0
        if 0 < influence.triu(1).max() < 1e-3 * influence.tril(-1).max():
            return patient.knowing(causal=True)
    except Exception:
        return patient
    future, past = _share(seen.triu(1)), _share(seen.tril(-1))
    if not max(future, past):
        return patient  # no token knows another
    if 0 < future < past and _is_prefix(seen):
        return patient  # it may be meant so: Facts(causal="prefix") or Facts(causal=True) decides
    return patient.knowing(causal=min(future, past) < 0.5 * max(future, past))


def _has_triangle(patient: Patient) -> bool:
    """Whether attention inside, of all tokens to all, hides the future and nothing of the past."""
    try:
        calls = [each.call for each in observed(patient)]
    except CannotTell:
        return False
    length = patient.length
    own = [each for each in calls if each.q.shape[2] == each.k.shape[2] == length]
    lawful = torch.ones(length, length, dtype=torch.bool).tril()
    return bool(own) and all(
        each.mask is not None and bool((each.mask.dense(each.q.shape[1]).cpu() == lawful).all())
        for each in own
    )


def _is_prefix(seen: torch.Tensor) -> bool:
    """Whether the future is seen among the first tokens, by all of them, and nowhere else."""
    ahead = seen.triu(1).nonzero()
    prefix = int(ahead.max()) + 1
    return prefix > 2 and len(ahead) == prefix * (prefix - 1) // 2


def _share(seen: torch.Tensor) -> float:
    pairs = seen.shape[0] * (seen.shape[0] - 1) / 2
    return float(seen.sum()) / pairs
