"""The command line: one file a command, each a thin coat over the library."""

import sys
from collections.abc import Sequence

from manyheads.cli.failure import WRONG_USE, complain
from manyheads.extras import install_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What stands after ``manyheads``; None takes the program's own.

    Returns:
        The exit code: 0; 1 if it failed; 2 if an option, a file or an extra is wrong or missing;
        130 if it was interrupted.

    Example:
        >>> main(["explain", "--heads", "7", "--kv-heads", "2"])
        2
    """
    try:
        import cyclopts  # noqa: F401 - only whether they are there
        import rich  # noqa: F401
    except ImportError:
        complain(f"The command line must have its extra; run: {install_line('cli')}")
        return WRONG_USE
    from manyheads.cli.app import run

    return run(list(sys.argv[1:] if arguments is None else arguments))
