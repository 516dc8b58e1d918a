"""The doctor as a fixture of pytest, wherever this package is installed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from manyheads.doctor import Report


@pytest.fixture
def doctor() -> "Callable[..., Report]":
    """`manyheads.doctor.examine`, which fails the test with the report if anything is found.

    Notes do not fail it. The report is returned.

    Example:
        >>> def test_my_model_is_healthy(doctor):
        ...     doctor(MyModel(), torch.randn(2, 9, 64))
    """
    # Loaded when a test asks for it, so that no other test run waits for torch.
    from manyheads.doctor import examine

    def examined(*args: Any, **kwargs: Any) -> "Report":
        __tracebackhide__ = True
        report = examine(*args, **kwargs)
        if not report.healthy:
            pytest.fail(str(report), pytrace=False)
        return report

    return examined
