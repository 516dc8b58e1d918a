"""What an examination found."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from manyheads.doctor.check import Finding, Verdict
from manyheads.doctor.facts import Facts
from manyheads.files import PAGES, check_path, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, repr=False)
class Report:
    """Findings, causes before symptoms and errors before notes, and every check's verdict.

    Args:
        model: The class of the model.
        facts: What was declared and inferred.
        findings: What is wrong.
        verdicts: What each check said.
        unread: Arguments of the example that were left as given, since nobody said what they are.
        not_given: Masks that the model takes and the example does not give.

    Example:
        >>> import torch, manyheads as mh
        >>> report = mh.doctor.examine(mh.MultiHeadAttention(16, 4), torch.randn(2, 5, 16))
        >>> report.healthy, report.findings
        (True, ())
    """

    model: str
    facts: Facts
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    unread: tuple[str, ...] = ()
    not_given: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing was found but notes."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of each finding."""
        return tuple(finding.code for finding in self.findings)

    def verdict(self, code: str) -> Verdict:
        """What one check said."""
        return next(verdict for verdict in self.verdicts if verdict.code == code)

    @property
    def known(self) -> dict[str, Any]:
        """The facts by name, as plain data."""
        return {name: _plain(value) for name, value in self.facts.known.items()}

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "model": self.model,
            "healthy": self.healthy,
            "facts": self.known,
            "unread": list(self.unread),
            "not_given": list(self.not_given),
            "findings": [{**asdict(each), "evidence": each.evidence} for each in self.findings],
            "verdicts": {
                each.code: {"says": each.says, "reason": each.reason} for each in self.verdicts
            },
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def to_html(self) -> str:
        """The report as one page for a browser, with pictures of the evidence; no network needed.

        Pictures need matplotlib; without it the page says how to install it.
        """
        from manyheads.doctor.page import page_of

        return page_of(self)

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, whole or not at all.

        Args:
            path: The page, ending in .html.

        Returns:
            The path.

        Raises:
            OptionError: If the path is no page's.
        """
        target = check_path(path, example="report.html", endings=PAGES)
        write_text(target, self.to_html())
        return target

    def __repr__(self) -> str:
        return f"Report({': '.join([self.headline, *filter(None, [', '.join(self.codes)])])})"

    def __str__(self) -> str:
        lines = [self.headline]
        for finding in self.findings:
            lines += [
                f"{finding.severity} {finding.code}: {finding.where}",
                f"  measured  {finding.evidence}",
                f"  means     {finding.explanation}",
                f"  cure      {finding.cure}",
            ]
            if finding.symptoms:
                lines.append(f"  shows as  {', '.join(finding.symptoms)}")
            lines.append(f"  more      {_command(finding)}")
        lines.append(self._tail())
        return "\n".join(lines)

    def __rich__(self) -> "RenderableType":
        """Findings as panels, for rich's console."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        colours = {"error": "red", "warning": "yellow", "note": "blue"}
        parts: list[RenderableType] = [Text(self.headline, style="bold")]
        for finding in self.findings:
            rows = {
                "measured": finding.evidence,
                "means": finding.explanation,
                "cure": finding.cure,
                "shows as": ", ".join(finding.symptoms),
                "more": _command(finding),
            }
            table = Table.grid(padding=(0, 2))
            for name, text in rows.items():
                if text:
                    table.add_row(Text(name, style="dim"), Text(text))
            title = Text(f"{finding.severity} {finding.code}: {finding.where}")
            colour = colours[finding.severity]
            parts.append(Panel(table, title=title, title_align="left", border_style=colour))
        return Group(*parts, Text(self._tail(), style="dim"))

    @property
    def headline(self) -> str:
        """The model, and how much is wrong with it."""
        worst = [sum(f.severity == s for f in self.findings) for s in ("error", "warning", "note")]
        counts = ", ".join(
            f"{count} {name}{'s' * (count > 1)}"
            for count, name in zip(worst, ("error", "warning", "note"), strict=True)
            if count
        )
        return f"{self.model}: {counts or 'nothing found'}"

    def _tail(self) -> str:
        passed = sum(each.says == "pass" for each in self.verdicts)
        unknown = sum(each.says == "cannot tell" for each in self.verdicts)
        known = [(name, value) for name, value in self.known.items() if name != "cache"]
        facts = ", ".join(f"{name}={value!r}" for name, value in known)
        told = f"{passed} checks passed, {unknown} could not tell. Taken as known: {facts}."
        if self.unread:
            told += f" Left as given, for no fact says what it is: {', '.join(self.unread)}."
        if self.not_given:
            told += f" Not examined, for the example gives none: {', '.join(self.not_given)}."
        return told


def _command(finding: Finding) -> str:
    # On a terminal a page of the docs may be far; the command is where the package is.
    return f"manyheads doctor --explain {finding.code}"


def _plain(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return type(value).__name__
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
