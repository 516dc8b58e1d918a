"""Rotary that pairs other features than the weights were trained for."""

import copy
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product

import torch
from torch import Tensor, nn

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.copying import private_copy
from manyheads.doctor.inside import observed
from manyheads.doctor.output import main_slot, part
from manyheads.doctor.patient import Patient
from manyheads.doctor.running import run
from manyheads.errors import ProbeError
from manyheads.probe import watch

APART = re.compile(
    r"(^|[._])(w?_?[qk]|w_?(query|key)|query|keys?|to_[qk]|[qk]_?(proj|linear|lin|net|map|norm))"
    r"([._]|$)",
    re.IGNORECASE,
)
TOGETHER = re.compile(r"qkv|query_key_value|in_proj|c_attn", re.IGNORECASE)


def look(patient: Patient) -> Iterator[Sign]:
    """Compare with the reference; where that differs, lay the weights' pairs out the other way."""
    right = _reference(patient)
    off = float(patient.differs(patient.out, right, allowed=patient.close).max())
    if not off:
        return
    turned = _turned(patient)
    for halves, by_head in product((False, True), (False, True)):
        model, where = _laid_out(patient, turned, halves=halves, by_head=by_head)
        found = patient.ask(patient.base, model=model)
        if not patient.differs(found, right, allowed=patient.close).any():
            name = "halves" if halves else "neighbours"
            unit = f"of the output is off, and nothing once the weights' pairs are {name}"
            if not turned.all():
                unit += f" in the {int(turned.sum())} of {len(turned)} features that rotary turns"
            yield Sign(where, off, unit, "rounding only")
            return
    raise CannotTell(
        f"{off:.2g} of the output differs from the reference, whatever the order of pairs: "
        f"something else is not the same"
    )


def _reference(patient: Patient) -> Tensor:
    """What the reference answers."""
    model = private_copy(patient.facts.reference).eval()  # type: ignore[arg-type]
    model = model.double() if patient.is_wide else model
    try:
        output = run(model, patient.base)
    except Exception as error:
        raise CannotTell(f"the reference raised {type(error).__name__}: {error}") from error
    found = part(output, patient.facts.out)
    found = found if isinstance(found, Tensor) else part(output, main_slot(output))
    if not isinstance(found, Tensor) or found.numel() != patient.out.numel():
        raise CannotTell("the reference answers in another shape")
    found = found.transpose(0, 1) if patient.facts.layout == "length" else found
    return found.reshape(patient.out.shape)


def _turned(patient: Patient) -> Tensor:
    """Which features of a head positions turn: those that differ though all tokens are alike."""
    x, axis = patient.x, 0 if patient.facts.layout == "length" else 1
    call = patient.base.put(patient.facts.x, x.narrow(axis, 0, 1).expand_as(x).clone())
    calls: list[Tensor] = []
    with suppress(ProbeError), watch(patient.model, each=lambda seen: calls.append(seen.call.q)):
        patient.ask(call)
    if not calls:
        head_dim = patient.facts.head_dim or observed(patient)[0].head_dim
        return torch.ones(head_dim, dtype=torch.bool)
    q = calls[0].detach()
    moved = (q - q[:, :, :1]).abs().amax(dim=(0, 1, 2)) > 1e-6 * float(q.abs().max())
    return moved if moved.any() else ~moved


def _laid_out(
    patient: Patient, turned: Tensor, *, halves: bool, by_head: bool
) -> tuple[nn.Module, str]:
    """A copy whose queries and keys are made in another order, and where the first of them are.

    Args:
        patient: The model.
        turned: Which features of a head to reorder.
        halves: Whether neighbours become halves, or halves neighbours.
        by_head: Whether a packed projection holds query, key and value of one head after another,
            as GPT-NeoX and BLOOM pack them, or all queries, then all keys, then all values.
    """
    head_dim, pairs = len(turned), turned.nonzero()[:, 0]
    order = torch.arange(head_dim)
    if len(pairs) % 2 == 0:
        order[turned] = pairs.reshape((-1, 2) if halves else (2, -1)).T.flatten()
    model = copy.deepcopy(patient.model)
    changed = []
    for name, weight in model.named_parameters():
        together, rows = bool(TOGETHER.search(name)), len(weight) if weight.ndim else 0
        if rows % head_dim or not (together or APART.search(name)):
            continue
        heads = weight.detach().view(rows // head_dim, head_dim, -1)
        own = torch.ones(len(heads), dtype=torch.bool)
        if together and by_head and len(heads) % 3 == 0:
            own[2::3] = False
        elif together:
            shared = patient.facts.num_kv_heads
            own[-(shared if shared is not None else len(heads) // 3) :] = False
        heads[own] = heads[own][:, order]
        changed.append(name)
    if not changed:
        raise CannotTell("the model names no weights of queries and keys")
    return model, changed[0]


CHECK = Check(
    code="rope_pairs_mixed",
    severity="error",
    title="Rotary pairs the wrong features",
    explanation="Rotary turns pairs of features. Some models pair neighbours (0 1, 2 3), others "
    "halves (0 4, 1 5), and weights that were trained the one way give fluent nonsense the other.",
    cure='Rotary(pairs="halves") for weights of Hugging Face, pairs="interleaved" for those of '
    "the original LLaMA and GPT-J; or reorder the rows of the projections of queries and keys.",
    healthy="the answers of the reference",
    source="Su et al. 2021, eq. 34 (arXiv:2104.09864); huggingface/transformers#25199",
    look=look,
    needs=("reference",),
    symptoms=("rope_on_values",),
)
