"""The asserts fail on what is broken and pass on its healthy peers, in a stranger's project."""

import os
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
from tests.museum.collection import BROKEN, HEALTHY
from tests.museum.exhibit import Exhibit
from tests.test_pytest_plugin import registered

from manyheads import doctor

ROOT = Path(__file__).parents[2]
LAWS: dict[str, tuple[set[str], Callable[[Exhibit], bool]]] = {
    "assert_causal": (
        {"future_leak"},
        lambda each: each.facts.causal is True and each.facts.cache is None,
    ),
    "assert_padding_invariant": (
        {"padding_leak", "mask_lost"},
        lambda each: each.facts.real is not None,
    ),
    "assert_batch_invariant": ({"batch_mixing"}, lambda each: not each.kwargs),
    "assert_cache_consistent": (
        {"cache_mismatch", "position_offset_cache"},
        lambda each: each.facts.cache is not None,
    ),
    "assert_isolated_documents": (
        {"document_leak"},
        lambda each: "document_ids" in signature(each.build().forward).parameters,
    ),
}
"""Of each assert: the codes that it must fail on, and the healthy exhibits that it can judge."""


def hold(law: str, exhibit: Exhibit) -> None:
    getattr(doctor, law)(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)


def broken(law: str) -> list[Exhibit]:
    return [each for each in BROKEN if each.code in LAWS[law][0]]


def healthy(law: str) -> list[Exhibit]:
    return [each for each in HEALTHY if not each.package and LAWS[law][1](each)][:16]


@pytest.mark.parametrize("law", LAWS)
def test_an_assert_fails_on_every_broken_module_of_its_law(law: str) -> None:
    for exhibit in broken(law):
        with pytest.raises(AssertionError, match=r"\w"):
            hold(law, exhibit)


@pytest.mark.parametrize("law", LAWS)
def test_an_assert_passes_on_healthy_peers(law: str) -> None:
    peers = healthy(law)
    assert len(peers) >= 2
    for exhibit in peers:
        hold(law, exhibit)


STRANGERS = """
import pytest
from tests.museum.test_asserts import LAWS, broken, healthy, hold

BAD = [(law, each) for law in LAWS for each in broken(law)[:1]]
GOOD = [(law, each) for law in LAWS for each in healthy(law)[:1]]


@pytest.mark.parametrize(("law", "exhibit"), BAD, ids=str)
def test_wrong_by_assert(law, exhibit):
    hold(law, exhibit)


@pytest.mark.parametrize(("law", "exhibit"), GOOD, ids=str)
def test_right_by_assert(law, exhibit):
    hold(law, exhibit)


@pytest.mark.parametrize(("law", "exhibit"), BAD, ids=str)
def test_wrong_by_fixture(doctor, law, exhibit):
    doctor(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)


@pytest.mark.parametrize(("law", "exhibit"), GOOD, ids=str)
def test_right_by_fixture(doctor, law, exhibit):
    doctor(exhibit.build(), *exhibit.args, facts=exhibit.facts, **exhibit.kwargs)
"""


def test_a_strangers_suite_tells_the_broken_from_the_healthy(tmp_path: Path) -> None:
    """The plugin comes by its entry point; nothing else is set up."""
    (tmp_path / "test_strangers.py").write_text(STRANGERS)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=line", *registered(), "test_strangers.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    laws = len(LAWS)
    assert f"{2 * laws} failed, {2 * laws} passed" in done.stdout, done.stdout
    assert "right" not in "".join(each for each in done.stdout.splitlines() if "FAILED" in each)
