"""How far a call goes: calls, functions, files and clock reads of one warm ``publish`` and one warm ``acquire``.

Run it as a script: ``python tests/bench/bench_paths.py [--json] [--show]``. A cluster of one node in a directory on
tmpfs, whose own process runs the shard. Counted are calls of Python functions of this project and of nothing else, by
``sys.monitoring``: in the thread that calls, and, apart from it, in the thread that serves the shard. A change of file
is a call of, or a return to, a function in another file. A clock read is a call of ``now``, ``token`` or
``now_and_token`` of the node's time from elsewhere; reading its counter, ``boot_ns``, is told apart. Warm: the log, the
connection and the lease that is written under have been used before.
``--show``: the functions, in order, once each, and who reads clocks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.support.cluster import Site  # noqa: E402 - a script finds the repository first

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

WARMING: Final = 5
"""How often each call is made before it is counted."""
CLOCKS: Final = frozenset({"now", "token", "now_and_token"})
COUNTER: Final = "boot_ns"
CLOCK_FILES: Final = frozenset({"timeagent/agent/bounded_clock.py", "timeagent/agent/page.py"})
_TOOL: Final = sys.monitoring.PROFILER_ID
_EVENTS: Final = sys.monitoring.events


@dataclass(slots=True)
class Way:
    """What one thread did."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """File and function, in order."""
    stack: list[tuple[str, str]] = field(default_factory=list)
    changes: int = 0
    clock_readers: list[str] = field(default_factory=list)
    counter_reads: int = 0

    def fields(self) -> dict[str, int]:
        """Return the numbers."""
        return {
            "calls": len(self.calls),
            "functions": len(set(self.calls)),
            "files": len({file for file, _ in self.calls}),
            "changes_of_file": self.changes,
            "clock_reads": len(self.clock_readers),
            "counter_reads": self.counter_reads,
        }


class Counting:
    """Counts while it is on, each thread apart."""

    def __init__(self) -> None:
        self.paths: dict[str, Way] = {}

    def began(self, code: CodeType, _: int) -> Any:  # noqa: ANN401 - what sys.monitoring wants
        file = code.co_filename.removeprefix(f"{ROOT}/")
        if file.startswith(("/", "<", "tests/", ".venv/")):
            return sys.monitoring.DISABLE
        path = self.paths.setdefault(threading.current_thread().name, Way())
        before = path.stack[-1] if path.stack else (file, "")
        if not code.co_name.startswith("<"):  # a comprehension or a lambda is part of its function
            path.calls.append((file, code.co_qualname))
            path.changes += before[0] != file
            if file in CLOCK_FILES and before[0] not in CLOCK_FILES:
                path.counter_reads += code.co_name == COUNTER
                if code.co_name in CLOCKS:
                    path.clock_readers.append(f"{before[1]}: {code.co_name}")
        path.stack.append((file, code.co_qualname))
        return None

    def ended(self, code: CodeType, *_: object) -> Any:  # noqa: ANN401
        file = code.co_filename.removeprefix(f"{ROOT}/")
        path = self.paths.get(threading.current_thread().name)
        if path is not None and path.stack and path.stack[-1] == (file, code.co_qualname):
            path.stack.pop()
            path.changes += bool(path.stack) and path.stack[-1][0] != file
        return None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count for a block."""
        monitoring = sys.monitoring
        monitoring.use_tool_id(_TOOL, "paths")
        for event, called in (
            (_EVENTS.PY_START, self.began),
            (_EVENTS.PY_RESUME, self.began),
            (_EVENTS.PY_RETURN, self.ended),
            (_EVENTS.PY_YIELD, self.ended),
            (_EVENTS.PY_UNWIND, self.ended),
        ):
            monitoring.register_callback(_TOOL, event, called)
        monitoring.set_events(
            _TOOL,
            _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.PY_RETURN | _EVENTS.PY_YIELD | _EVENTS.PY_UNWIND,
        )
        try:
            yield
        finally:
            monitoring.set_events(_TOOL, 0)
            monitoring.free_tool_id(_TOOL)


def measured(directory: Path) -> dict[str, Way]:
    """Return what publish, and acquire with relinquish on both sides, come to."""
    site = Site(directory)
    try:
        with site.open() as cluster, cluster.session() as session:
            session._renewal_thread.stop()  # nothing beside what is counted
            for _ in range(WARMING):
                with session.acquire("a") as leases:
                    session.publish("log", [b"m"], under=leases)
            publishing, leasing = Counting(), Counting()
            leases = session.acquire("a")
            session.publish("log", [b"m"], under=leases)
            with publishing.on():
                session.publish("log", [b"m"], under=leases)
            session.relinquish(leases)
            with leasing.on():
                session.relinquish(session.acquire("a"))
    finally:
        site.close()
    here = threading.current_thread().name
    return {
        "publish": publishing.paths[here],
        "acquire, client": leasing.paths[here],
        "acquire, shard": leasing.paths["tenure-shard"],
    }


def main(words: list[str] | None = None) -> int:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        paths = measured(Path(directory))
    if options.json:
        print(json.dumps({name: path.fields() for name, path in paths.items()}))
        return 0
    for name, path in paths.items():
        print(f"{name:16}", "  ".join(f"{words.replace('_', ' ')} {number}" for words, number in path.fields().items()))
        for file, function in dict.fromkeys(path.calls) if options.show else ():
            print(f"    {file}: {function}")
        for reader in path.clock_readers if options.show else ():
            print(f"    clock, {reader}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
