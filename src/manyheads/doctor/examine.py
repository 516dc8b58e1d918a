"""Examine any model: every check, causes first."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from manyheads.doctor.call import Call
from manyheads.doctor.causality import with_causality
from manyheads.doctor.check import Check, Finding, Verdict
from manyheads.doctor.checks import CHECKS
from manyheads.doctor.facts import ARGUMENTS, Facts
from manyheads.doctor.patient import Patient
from manyheads.doctor.report import Report
from manyheads.errors import ExamineError

UNKNOWN = Facts()


def examine(
    model: nn.Module,
    *args: Any,
    facts: Facts = UNKNOWN,
    checks: Sequence[Check] = CHECKS,
    **kwargs: Any,
) -> Report:
    """Tell what is wrong with a model's attention, where, how it shows, and what cures it.

    The model is called, in eval and in training, on random inputs of the kind of the example.
    Everything is done on copies: weights, buffers, gradients, mode, hooks and random generators
    are afterwards as they were before.

    Args:
        model: Any module.
        args: An example input, as the model takes it.
        facts: What the model is meant to be, where its names and answers do not tell.
        checks: The checks to make; all, unless given.
        kwargs: The rest of the example input.

    Returns:
        The report. What could not be checked is in its verdicts, with the reason.

    Raises:
        ExamineError: If the model cannot be examined at all; the message says what is needed.

    Example:
        >>> import torch, manyheads as mh
        >>> class Leaky(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x + x.roll(-1, dims=1)  # each token is told the next
        >>> report = mh.doctor.examine(Leaky(), torch.randn(2, 6, 8), facts=Facts(causal=True))
        >>> report.codes
        ('future_leak',)
    """
    if not isinstance(model, nn.Module):
        raise ExamineError(
            f"model must be a torch.nn.Module; got model={type(model).__name__}. Wrap a function "
            f"in a module whose forward calls it."
        )
    if not isinstance(facts, Facts):
        raise ExamineError(
            f"facts must be Facts; got facts={type(facts).__name__}. Write "
            f"facts=Facts(causal=True), for one."
        )
    with torch.inference_mode(False):  # there, no weight would have a gradient
        return _examined(model, Call.of(model, args, kwargs), facts, checks)


def _examined(model: nn.Module, call: Call, facts: Facts, checks: Sequence[Check]) -> Report:
    patient = with_causality(Patient.of(model, call, facts))
    verdicts: list[Verdict] = []
    for check in checks:
        verdicts.append(check.run(patient))
        if verdicts[-1].says == "fail" and check.code == "nan_origin":
            reason = "the output holds NaN, whatever is asked"
            later = checks[len(verdicts) :]
            verdicts += [Verdict(each.code, "cannot tell", reason=reason) for each in later]
            break
    found = [finding for verdict in verdicts for finding in verdict.findings]
    by_code = {check.code: check for check in checks}
    return Report(
        model=type(getattr(model, "_orig_mod", model)).__name__,
        facts=patient.facts,
        findings=tuple(
            by_code[finding.code].illustrated(finding, patient)
            for finding in _folded(found, by_code)
        ),
        verdicts=tuple(verdicts),
        unread=_unread(call, patient.facts),
        not_given=tuple(each for each in call.names if "mask" in each and call.get(each) is None),
    )


def _unread(call: Call, facts: Facts) -> tuple[str, ...]:
    """Tensors of the example that no fact speaks of."""
    slots = [getattr(facts, name) for name in ARGUMENTS]
    slots += [facts.cache.argument] if facts.cache is not None else []
    known = [call.get(slot) for slot in slots]
    return tuple(name for name, value in call.tensors() if all(value is not each for each in known))


def _folded(findings: list[Finding], checks: dict[str, Check]) -> Iterator[Finding]:
    """Findings by severity, each with its symptoms under it instead of beside it."""
    codes = {finding.code for finding in findings}
    hidden: set[str] = set()
    kept: list[Finding] = []
    for finding in findings:
        if finding.code in hidden:
            continue
        own = tuple(code for code in checks[finding.code].symptoms if code in codes)
        hidden |= set(own)
        kept.append(replace(finding, symptoms=own))
    order = ["error", "warning", "note"]
    yield from sorted(kept, key=lambda finding: order.index(finding.severity))
