"""Tell anyone what is wrong with their attention, and where."""

from manyheads.doctor.check import Check, Finding, Sign, Verdict
from manyheads.doctor.checks import CHECKS
from manyheads.doctor.examine import examine
from manyheads.doctor.facts import CacheFacts, Facts
from manyheads.doctor.report import Report

__all__ = [
    "CHECKS",
    "CacheFacts",
    "Check",
    "Facts",
    "Finding",
    "Report",
    "Sign",
    "Verdict",
    "examine",
]
