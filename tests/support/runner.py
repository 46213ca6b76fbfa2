"""The command ``tenure`` with a wrong step planted: ``python -m tests.support.runner MUTANT WORDS...``."""

from __future__ import annotations

import sys

import pytest

from appliance.recipes import processes
from tenure.__main__ import entry
from tests.support.mutants import plant

MUTANTS = {
    "kills-only-the-group": (
        processes,
        "ProcessTree.kill",
        "_send(each, signal.SIGKILL)",
        "each.group == self.pid and _send(each, signal.SIGKILL)",
    ),
    "is-no-subreaper": (processes, "ProcessTree.__init__", "_prctl(_PR_SET_CHILD_SUBREAPER, 1)", "pass"),
    "sigkill-after-the-expiry": (
        processes,
        "Run._kill_now",
        "self._held.left_ns() <= self._held.grace_ns() // 2",
        "self._held.left_ns() <= -2 * self._held.grace_ns()",
    ),
    "never-kills": (processes, "Run._end", "self._command.kill()", "self._command.signal(signal.SIGTERM)"),
    "loses-the-exit-code": (processes, "Run.to_its_end", "return code", "return 0"),
}

if __name__ == "__main__":
    name, *words = sys.argv[1:]
    plant(pytest.MonkeyPatch(), *MUTANTS[name])
    sys.argv = ["tenure", *words]
    sys.exit(entry())
