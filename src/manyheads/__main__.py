"""``python -m manyheads``: the facts that a bug report needs; with arguments, the command line.

The facts come without any extra, so that an installation which lacks one can still be reported.
"""

import sys

from manyheads.cli import main
from manyheads.cli.info import facts

if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main())
    print(facts())
