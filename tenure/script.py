"""The console script: ``tenure run`` begins before the command line is loaded, if the node's daemon has the lease."""

from __future__ import annotations

import sys


def entry() -> int:
    """Run the command line."""
    if __debug__ and sys.argv[1:2] == ["run"] and "--quick" in sys.argv:
        from appliance.recipes.quick_run import quick_run

        code = quick_run(sys.argv[2:])
        if code is not None:
            return code
    from .__main__ import entry as whole

    return whole()
