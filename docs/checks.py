"""Write every check of the doctor into docs/doctor.md, from the texts of the checks themselves.

python docs/checks.py
"""

from collections.abc import Iterator
from pathlib import Path

from manyheads.doctor import CHECKS

PAGE = Path(__file__).parent / "doctor.md"
BEGIN, END = "<!-- checks: written by docs/checks.py -->\n", "<!-- end of checks -->\n"


def lines() -> Iterator[str]:
    """A table of codes, then a section each."""
    yield "| code | severity | what is wrong |"
    yield "| --- | --- | --- |"
    for check in CHECKS:
        yield f"| [{check.code}](#{check.code}) | {check.severity} | {check.title} |"
    for check in CHECKS:
        yield ""
        yield f"### {check.code}"
        yield ""
        yield f"**{check.title}** ({check.severity}). {check.explanation}"
        yield ""
        yield f"- Healthy: {check.healthy}."
        yield f"- Cure: {check.cure}"
        if check.needs:
            yield f"- Must be known: {', '.join(f'`{name}`' for name in check.needs)}."
        if check.symptoms:
            links = ", ".join(f"[{code}](#{code})" for code in check.symptoms)
            yield f"- Explains, if found too: {links}."
        yield f"- Source: {check.source}."


def with_checks(text: str) -> str:
    """A page with the checks between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}" + "\n".join(lines()) + f"\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_checks(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
