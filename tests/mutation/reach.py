"""Which functions of ours each test runs, and how long it takes: a plugin of pytest that writes it down.

    make test ARGS='-p tests.mutation.reach'     writes dist/reach/*.json, a file for each process of the run

What a fixture runs that several tests share counts for every test that asks for it. Programs that tests start, and
processes that they fork, are not seen.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import CodeType

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "dist" / "reach"
TOOL = 4
"""The number by which the interpreter knows who listens: one that no other tool takes."""


def function_of(code: CodeType) -> str | None:
    """Return the name of a function of this repository, "file:qualified name"; None for others, and for inner ones."""
    ours = code.co_filename.startswith(f"{ROOT}/") and "/." not in code.co_filename[len(str(ROOT)) :]
    if not ours or "<" in code.co_qualname:
        return None
    return f"{code.co_filename[len(str(ROOT)) + 1 :]}:{code.co_qualname}"


def named(owner: object, attribute: str) -> str | None:
    """Return the name, as above, of what a module or a class has under a name; None if that is no function."""
    found: Any = inspect.getattr_static(owner, attribute)
    found = getattr(found, "fget", found)
    found = inspect.unwrap(getattr(found, "__func__", found))
    return function_of(found.__code__) if hasattr(found, "__code__") else None


@dataclass
class Reach:
    """What tests and fixtures were seen to run."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of every test."""
    runs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Functions, by test."""
    shared: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Functions, by the name of a fixture that several tests share."""
    fixtures: dict[str, list[str]] = field(default_factory=dict)
    """Names of fixtures, by test."""

    def tests_of(self, function: str) -> list[str]:
        """Return the tests that run a function, the quickest first."""
        shared = {name for name, functions in self.shared.items() if function in functions}
        found = (
            test
            for test in self.seconds
            if function in self.runs[test] or not shared.isdisjoint(self.fixtures.get(test, ()))
        )
        return sorted(found, key=self.seconds.__getitem__)


def write(reach: Reach, file: Path) -> None:
    """Write what was seen, each function once."""
    functions: dict[str, int] = {}

    def numbers(names: set[str]) -> list[int]:
        return [functions.setdefault(name, len(functions)) for name in sorted(names)]

    tests = [
        [test, round(seconds, 4), reach.fixtures.get(test, []), numbers(reach.runs[test])]
        for test, seconds in reach.seconds.items()
    ]
    shared = {name: numbers(names) for name, names in reach.shared.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"tests": tests, "shared": shared, "functions": list(functions)}), encoding="utf-8")


def read(directory: Path) -> Reach:
    """Read what all processes of a run wrote."""
    reach = Reach()
    for file in directory.glob("*.json"):
        rows = json.loads(file.read_bytes())
        functions = rows["functions"]
        for test, seconds, fixtures, runs in rows["tests"]:
            reach.seconds[test], reach.fixtures[test] = seconds, fixtures
            reach.runs[test] = {functions[each] for each in runs}
        for name, runs in rows["shared"].items():
            reach.shared[name] |= {functions[each] for each in runs}
    return reach


class Listening:
    """The plugin: it hears of the first call of each function in each test."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reach = Reach()
        self._now: set[str] = set()
        sys.monitoring.use_tool_id(TOOL, "reach")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.PY_START, self._begins)
        sys.monitoring.set_events(TOOL, sys.monitoring.events.PY_START)

    def _begins(self, code: CodeType, _offset: int) -> object:
        function = function_of(code)
        if function is not None:
            self._now.add(function)
        return sys.monitoring.DISABLE

    @contextmanager
    def _hear(self) -> Generator[set[str]]:
        """Hear of every function again, also of those heard of already; those of it alone are in the set."""
        before, self._now = self._now, set()
        sys.monitoring.restart_events()
        try:
            yield self._now
        finally:
            before |= self._now
            self._now = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._now = set()
        began = time.perf_counter()
        with self._hear() as self._reach.runs[item.nodeid]:
            result = yield
        self._reach.seconds[item.nodeid] = time.perf_counter() - began
        self._reach.fixtures[item.nodeid] = list(getattr(item, "fixturenames", ()))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with self._hear() as seen:
            result = yield
        self._reach.shared[fixturedef.argname] |= seen
        return result

    def pytest_sessionfinish(self) -> None:
        sys.monitoring.set_events(TOOL, 0)
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.PY_START, None)
        sys.monitoring.free_tool_id(TOOL)
        write(self._reach, self._file)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where to write."""
    parser.addoption("--reach", type=Path, default=DIRECTORY, metavar="DIRECTORY", help="where reach is written")


def pytest_configure(config: pytest.Config) -> None:
    """Listen where tests are run: not in the process that hands them out."""
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is not None or not config.getoption("numprocesses", default=None):
        config.pluginmanager.register(Listening(config.getoption("--reach") / f"{worker or 'one'}.json"))
