"""The optional packages that training stands on."""

from __future__ import annotations

from importlib.util import find_spec

from manyheads.errors import MissingExtraError
from manyheads.extras import install_line


def require_lightning() -> None:
    """Say what to install where Lightning, whose Trainer runs the training, is missing.

    Raises:
        MissingExtraError: If it is.
    """
    if find_spec("lightning") is None:
        raise MissingExtraError(
            "training must find Lightning, whose Trainer runs it; got lightning=missing. "
            f"Run: {install_line('training')}"
        )
