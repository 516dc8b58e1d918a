"""Data whose right attention is known.

A new task is one file and one line in ``TASKS``; the laws of every task, the command line and
the trainer walk this table.
"""

from manyheads.errors import OptionError, is_named
from manyheads.tasks.addition import Addition
from manyheads.tasks.base import Example, Split, SplitName, Task, home
from manyheads.tasks.copy import Copy
from manyheads.tasks.dates import Dates
from manyheads.tasks.patterns import Pattern, decidable_patterns
from manyheads.tasks.reverse import Reverse
from manyheads.tasks.vocabulary import Vocabulary

TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "reverse": Reverse,
    "addition": Addition,
    "dates": Dates,
}

__all__ = [
    "TASKS",
    "Addition",
    "Copy",
    "Dates",
    "Example",
    "Pattern",
    "Reverse",
    "Split",
    "SplitName",
    "Task",
    "Vocabulary",
    "decidable_patterns",
    "find_task",
    "home",
]


def find_task(name: str) -> type[Task]:
    """Give the task of a name.

    Raises:
        OptionError: If there is none; the message names all.

    Example:
        >>> find_task("copy")(max_length=5).max_length
        5
    """
    if not is_named(name, TASKS):
        raise OptionError(
            f"task must be one of {', '.join(TASKS)}; got task={name!r}. Pass one of these."
        )
    return TASKS[name]
