"""The page of the doctor says what the checks say."""

import importlib.util
import re
from pathlib import Path

import pytest

from manyheads.doctor import CHECKS, Check
from manyheads.doctor.facts import MEANING, Facts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_the_page_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("checks", ROOT / "docs" / "checks.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.with_checks(PAGE) == PAGE, "run: python docs/checks.py"


def test_every_fact_is_on_the_page() -> None:
    missing = [name for name in Facts.__dataclass_fields__ if f"`{name}`" not in PAGE]
    assert missing == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_explains_itself(check: Check) -> None:
    for text in (check.explanation, check.cure):
        assert text.endswith(".") and len(text) > 20
    assert f"### {check.code}\n" in PAGE
    assert check.healthy and check.source
    assert set(check.needs) <= MEANING.keys()
    assert not re.search(r"[.!]$", check.title)
