"""Write every check of the doctor into docs/doctor.md, from the texts of the checks themselves.

python docs/checks.py
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "doctor.md"
sys.path.insert(0, str(PAGE.parents[1]))  # where the museum is

from tests.museum.collection import BROKEN, HEALTHY  # noqa: E402

from manyheads.doctor import CHECKS  # noqa: E402

BEGIN, END = "<!-- checks: written by docs/checks.py -->\n", "<!-- end of checks -->\n"


def lines() -> Iterator[str]:
    """A table of codes, then a section each."""
    shown = Counter(exhibit.code for exhibit in BROKEN)
    wings = f"{len(BROKEN)} broken modules and {len(HEALTHY)} healthy ones"
    yield f"The [museum](museum.md) shows {wings}."
    yield ""
    yield "| code | severity | what is wrong | broken modules |"
    yield "| --- | --- | --- | --- |"
    for check in CHECKS:
        name = f"[{check.code}](#{check.code})"
        yield f"| {name} | {check.severity} | {check.title} | {shown[check.code]} |"
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
