"""What a check is, and what it can say."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from manyheads.doctor.facts import MEANING
from manyheads.doctor.patient import Patient
from manyheads.doctor.picture import Picture

Severity = Literal["error", "warning", "note"]
PLACES = 3
"""How many places a finding names."""


class CannotTell(Exception):
    """A check that cannot be made; its text is the reason."""


@dataclass(frozen=True)
class Sign:
    """One thing that was measured and should not be so.

    Args:
        where: Module path, layer, head, position: as much as is known.
        number: What was measured.
        unit: What the number counts.
        expected: What a healthy model would have shown.
        advice: What to do in this case, before the general cure.
    """

    where: str
    number: float
    unit: str
    expected: str
    advice: str = ""


@dataclass(frozen=True)
class Finding:
    """A disease, the place, the evidence and the cure.

    Args:
        code: The public name of the disease.
        severity: "error" (answers are wrong), "warning" (they can become so), "note" (worth
            knowing).
        where: Module path, layer, head, position: as much as is known.
        number: The measured evidence.
        unit: What the number counts.
        expected: What a healthy model would have shown.
        explanation: What is wrong, and what it leads to.
        cure: What to change.
        link: The page of this code.
        symptoms: Codes of what follows from it, found too.
        pictures: The evidence as maps, where it can be drawn.
    """

    code: str
    severity: Severity
    where: str
    number: float
    unit: str
    expected: str
    explanation: str
    cure: str
    link: str
    symptoms: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()

    @property
    def evidence(self) -> str:
        """The measured number in a sentence."""
        return f"{self.number:.3g} {self.unit}; a healthy model shows {self.expected}"


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Args:
        code: The check.
        says: "pass", "fail" or "cannot tell".
        findings: What failed.
        reason: Why it cannot tell.
    """

    code: str
    says: Literal["pass", "fail", "cannot tell"]
    findings: tuple[Finding, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Check:
    """One disease and how to find it.

    Args:
        code: The public name of the disease.
        severity: Of its findings.
        title: What is wrong, in a few words.
        explanation: What it is and what it leads to.
        cure: What to change.
        healthy: What a healthy model shows.
        source: Where the disease is described.
        look: Yields a sign for each thing that is not as it should be, or raises `CannotTell`.
        needs: Facts without which it cannot be made.
        symptoms: Codes of what else it shows as; they are told under it.
        draw: Makes pictures of what was found at a place; None if there is nothing to draw.
    """

    code: str
    severity: Severity
    title: str
    explanation: str
    cure: str
    healthy: str
    source: str
    look: Callable[[Patient], Iterable[Sign]]
    needs: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    draw: Callable[[Patient, str], Iterable[Picture]] | None = None

    @property
    def link(self) -> str:
        """The page of this code."""
        return f"docs/doctor.md#{self.code}"

    def run(self, patient: Patient) -> Verdict:
        """Examine a patient. What is found counts if independent inputs show it again."""
        for name in self.needs:
            if getattr(patient.facts, name) is None:
                missing = f"nobody said {MEANING[name]}: declare Facts({name}=...)"
                return Verdict(self.code, "cannot tell", reason=missing)
        try:
            signs = list(self.look(patient))
            if signs and not list(self.look(patient.again())):
                signs = []
        except CannotTell as cannot:
            return Verdict(self.code, "cannot tell", reason=str(cannot))
        except Exception as error:  # of somebody's model, asked what it was never asked before
            raised = f"the model raised {type(error).__name__}: {str(error)[:200]}"
            return Verdict(self.code, "cannot tell", reason=raised)
        if not signs:
            return Verdict(self.code, "pass")
        return Verdict(self.code, "fail", tuple(map(self._finding, _joined(signs))))

    def illustrated(self, finding: Finding, patient: Patient) -> Finding:
        """A finding of this check with its pictures."""
        if self.draw is None:
            return finding
        pictures: list[Picture] = []
        # Drawing asks somebody's model once more; what was found stands without it too.
        with suppress(Exception):
            pictures += self.draw(patient, finding.where)
        return replace(finding, pictures=tuple(pictures))

    def _finding(self, sign: Sign) -> Finding:
        return Finding(
            code=self.code,
            severity=self.severity,
            where=sign.where,
            number=sign.number,
            unit=sign.unit,
            expected=sign.expected,
            explanation=self.explanation,
            cure=f"{sign.advice} {self.cure}".lstrip(),
            link=self.link,
        )


def _joined(signs: list[Sign]) -> Iterator[Sign]:
    """One sign for all places that show the same, as the layers of one make do."""
    alike: dict[tuple[str, ...], list[Sign]] = {}
    for sign in signs:
        alike.setdefault((sign.unit, sign.expected, sign.advice), []).append(sign)
    for same in alike.values():
        places = list(dict.fromkeys(sign.where for sign in same))
        more = f" and {len(places) - PLACES} more" if len(places) > PLACES else ""
        yield replace(same[0], where="; ".join(places[:PLACES]) + more)
