"""The console script: ``tenure run --quick`` begins before the command line is loaded."""

from __future__ import annotations

import importlib
import sys


def quickly() -> int | None:
    """Return the exit code of what could be done at once; None: it is for the whole command."""
    if (
        not __debug__
        or sys.argv[1:2] != ["run"]
        or "--quick" not in sys.argv
        or sys.stdout is None
        or sys.stderr is None
    ):
        return None
    from appliance.recipes.quick_run import quick_run

    return quick_run(sys.argv[2:])


def entry() -> int:
    """Run the command line."""
    code = quickly()
    if code is not None:
        return code
    # By its name: that module begins here too, so that ``python -m tenure`` is as quick.
    return int(importlib.import_module("tenure.__main__").entry())
