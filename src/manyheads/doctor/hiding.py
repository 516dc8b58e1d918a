"""Calls in which some tokens are said to be padding, or of another document."""

from typing import Any

import torch
from torch import Tensor

from manyheads.doctor.call import Call
from manyheads.doctor.check import CannotTell
from manyheads.doctor.facts import MEANING
from manyheads.doctor.patient import Patient


def hide(patient: Patient, hidden: Tensor, call: Call | None = None) -> Call:
    """A call that says of some tokens, (batch, length), that they are not there.

    Raises:
        CannotTell: If nobody knows how to say it to this model.
    """
    call = patient.base if call is None else call
    facts = patient.facts
    if facts.padding is not None:
        if facts.real is None:
            raise CannotTell(f"nobody said {MEANING['real']}: declare Facts(real=...)")
        return call.put(facts.padding, marked(call.get(facts.padding), ~hidden, facts.real))
    if facts.mask is None:
        raise CannotTell(
            f"nobody said {MEANING['padding']}, or {MEANING['mask']}: declare Facts(padding=...) "
            f"or Facts(mask=...)"
        )
    keys = ~hidden[:, None, :].expand(-1, patient.length, -1)
    return show(patient, keys, call)


def show(patient: Patient, allowed: Tensor, call: Call | None = None) -> Call:
    """A call that says who may see whom, (batch, length, length).

    Raises:
        CannotTell: If nobody knows how to say it to this model.
    """
    call = patient.base if call is None else call
    facts = patient.facts
    for name in ("mask", "seen"):
        if getattr(facts, name) is None:
            raise CannotTell(f"nobody said {MEANING[name]}: declare Facts({name}=...)")
    given: Tensor | None = call.get(facts.mask)
    shape: tuple[int, ...] = (patient.length, patient.length) if given is None else given.shape
    if len(shape) == 2 or (len(shape) > 2 and shape[0] == 1):
        if not bool((allowed == allowed[:1]).all()):
            raise CannotTell("the mask is one for all rows, so rows cannot be padded by it")
        allowed = allowed[:1]
    if len(shape) == 2:
        allowed = allowed[0]
    elif shape[0] not in (1, patient.batch):  # (batch * heads, q_len, kv_len)
        allowed = allowed.repeat_interleave(shape[0] // patient.batch, dim=0)
    if len(shape) == 4:
        allowed = allowed[:, None].expand(-1, shape[1], -1, -1)
    return call.put(facts.mask, marked(given, allowed, facts.seen))


def marked(given: Any, keep: Tensor, real: Any) -> Tensor:
    """A mask of the type of the one given, or of the type of the value that marks what is real."""
    if isinstance(given, Tensor):
        dtype = given.dtype
        keep = keep.reshape(*keep.shape[:1], *[1] * (given.ndim - keep.ndim), *keep.shape[1:])
    else:
        dtype = torch.as_tensor(real).dtype
    if dtype == torch.bool or (not dtype.is_floating_point and real in (0, 1)):
        absent: Any = 1 - int(real)
    elif real == 1:
        absent = 0.0
    else:
        lowest = given.min().item() if isinstance(given, Tensor) and given.numel() else 0.0
        absent = lowest if lowest < 0 else -torch.inf
    mark = torch.full(keep.shape, absent, dtype=torch.float64)
    return mark.masked_fill(keep, float(real)).to(dtype)


def holes(patient: Patient) -> Tensor:
    """The first token and the third, (batch, length): hidden, they leave none of a kind alone.

    Raises:
        CannotTell: If the example is too short.
    """
    if patient.length < 4:
        raise CannotTell("the example has fewer than 4 tokens")
    return patient.tokens(0, 2)


def sides(patient: Patient) -> list[Tensor]:
    """Paddings to try, (batch, length): at the end of rows, and at their beginning."""
    count = max(1, patient.length // 4)
    left, right = patient.tokens(slice(0, count)), patient.tokens(slice(-count, None))
    # Behind the last real token of a causal row, padding could not do harm anyway.
    return [left] if patient.facts.causal is True else [right, left]


def two_documents(patient: Patient) -> tuple[Call, Tensor]:
    """A call with two documents packed into each row, and which tokens are the second's."""
    second = patient.tokens(slice(patient.length // 2, None))
    given = patient.base.get(patient.facts.documents)
    ids = second.to(given.dtype if isinstance(given, Tensor) else torch.long)
    if isinstance(given, Tensor) and given.ndim == 1:
        return patient.base.put(patient.facts.documents, ids[0]), second
    return patient.base.put(patient.facts.documents, patient.marks(ids)), second
