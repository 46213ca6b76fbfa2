"""Which tests come to which function: asked once, so that a mutant is met first by the tests that can notice it.

python -m tests.mutation.reach tests/unit tests/property     runs these tests, and adds what they come to
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

ROOT = Path(__file__).parents[2]
REACH = ROOT / "dist" / "reach.json"
OPTIONS = ("-q", "-m", "not slow and not lab", "--assert=plain", "-p", "no:cacheprovider")
PACKAGES = ("leasehold", "tui", "auditor", "appliance", "timeagent", "tests")


def place(code: CodeType) -> str | None:
    """Return a function's name here: its file in this repository, and its own; None: it is none of ours."""
    file = Path(code.co_filename)
    if not file.is_relative_to(ROOT) or (name := file.relative_to(ROOT)).parts[0] not in PACKAGES:
        return None
    return f"{name}:{code.co_qualname}"


class Reach:
    """By function, the tests that come to it; how long each test takes."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)
        self.seconds: dict[str, float] = {}
        self._now: set[CodeType] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now.clear()
        sys.monitoring.restart_events()
        began = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - began
        for name in {place(code) for code in self._now} - {None}:
            assert name is not None
            self.tests[name].append(item.nodeid)
        return result

    def watch(self) -> None:
        """See every function that is begun, in any thread, once for each test."""
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.PROFILER_ID, "reach")
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, self._begun)
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)

    def _begun(self, code: CodeType, _: int) -> object:
        self._now.add(code)
        return sys.monitoring.DISABLE


def read(path: Path = REACH) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Return the tests by function, and the seconds by test."""
    if not path.exists():
        return {}, {}
    known = json.loads(path.read_text(encoding="utf-8"))
    return known["tests"], known["seconds"]


def main(suites: list[str]) -> int:
    reach = Reach()
    reach.watch()
    status = pytest.main([*OPTIONS, *suites], plugins=[reach])
    tests, seconds = read()
    before = {name: [each for each in some if each not in reach.seconds] for name, some in tests.items()}
    together = {name: before.get(name, []) + reach.tests.get(name, []) for name in {*before, *reach.tests}}
    REACH.parent.mkdir(exist_ok=True)
    REACH.write_text(json.dumps({"tests": together, "seconds": seconds | reach.seconds}), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
