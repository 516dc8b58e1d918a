"""Tell anyone what is wrong with their attention, and where."""

from manyheads.doctor.asserts import (
    assert_batch_invariant,
    assert_cache_consistent,
    assert_causal,
    assert_isolated_documents,
    assert_padding_invariant,
)
from manyheads.doctor.check import Check, Finding, Sign, Verdict
from manyheads.doctor.checks import CHECKS
from manyheads.doctor.conformance import Conformance, LawVerdict, conformance
from manyheads.doctor.examine import examine
from manyheads.doctor.facts import CacheFacts, Facts
from manyheads.doctor.monitor import Alarm, Monitor, monitor
from manyheads.doctor.report import Report

__all__ = [
    "CHECKS",
    "Alarm",
    "CacheFacts",
    "Check",
    "Conformance",
    "Facts",
    "Finding",
    "LawVerdict",
    "Monitor",
    "Report",
    "Sign",
    "Verdict",
    "assert_batch_invariant",
    "assert_cache_consistent",
    "assert_causal",
    "assert_isolated_documents",
    "assert_padding_invariant",
    "conformance",
    "examine",
    "monitor",
]
