"""The command line's entry: refuse what cannot run safely, then call one family of commands."""

import sys
from collections.abc import Sequence
from typing import Final

USAGE_EXIT: Final = 2

USAGE: Final = """\
usage: leasehold [--help] COMMAND ...

Leases, bags and their audit for small clusters that share one file system.
No command is here yet.
"""

OPTIMISED: Final = """\
leasehold: refused: Python was started with -O or PYTHONOPTIMIZE, which removes assertions.
leasehold: they are part of the protocol and stay on in production; start it without.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if not __debug__:
        sys.stderr.write(OPTIMISED)
        return USAGE_EXIT
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if words:
        sys.stderr.write(f"leasehold: no such command: {words[0]}\n")
    sys.stderr.write(USAGE)
    return USAGE_EXIT


if __name__ == "__main__":
    sys.exit(main())
