"""States of the whole process that several watches need at once, in threads of their own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock


class Shared:
    """A state that the first who needs it brings about, and the last who needed it takes back.

    Threads do not leave in the order in which they came: if each put back what it had found, the
    last to leave would keep what the first had changed.

    Args:
        state: Makes the block in which the process is in that state.
    """

    def __init__(self, state: Callable[[], AbstractContextManager[object]]) -> None:
        self._state, self._stack = state, ExitStack()
        self._lock, self._count = Lock(), 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """The process is in this state in here."""
        with self._lock:
            if not self._count:
                self._stack.enter_context(self._state())
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._stack.close()
