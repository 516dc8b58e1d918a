"""Hooks of modules that stay behind when a module is copied or stored while it is watched."""

from collections.abc import Callable
from typing import Any


class Hook:
    """A hook whose copies do nothing.

    Args:
        function: What it does.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        """What the function gives."""
        return self._function(*args)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _copy, ()


def _copy() -> Callable[..., None]:
    return _nothing


def _nothing(*_: Any) -> None:
    """Nothing."""
