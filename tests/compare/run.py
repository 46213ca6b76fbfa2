"""The programs of docs/recipes/compare.md, run beside each other while the one at work dies or stands still.

    python -m tests.compare.run                 everything that can be had here
    python -m tests.compare.run --only TEXT     whose library, task or fault has this in its name
    python -m tests.compare.run --write         and the table into the page

Two processes do one task; the second waits while the first is at work. Then something is done to the first. What is
told is when the second began after that, how many steps of the first came after the second's first one, and how the
first ended. Services are started on loopback and clients come from PyPI (``tests/bench/leases/peers.py``); what cannot
be had is left out by its name.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from appliance.formats.policy import check_policy
from tests.bench.leases import peers
from tests.support.cluster import Site, fast_policy
from tests.support.documents import REPOSITORY, write_between
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PAGE: Final = "docs/recipes/compare.md"
BEGINS: Final = "<!-- compared: written by python -m tests.compare.run --write -->"
ENDS: Final = "<!-- end of compared -->"
WORKER: Final = Path(__file__).with_name("worker.py")
CLIENTS: Final = ("filelock", "kazoo", "etcd3gw")
STILL_S: Final = 9
"""How long the first stands still: more than twice as long as any lease lasts."""
PATIENCE_S: Final = 9
HOUR_S: Final = 3600
TASKS: Final = {"nightly": "a nightly job", "work_off": "a job from a queue", "in_folder": "work in a folder"}
_BLOCK: Final = re.compile(r"^\*\*(\w+)\*\*\n```python\n(def (\w+).*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Program:
    library: str
    task: str
    text: str

    @property
    def lines(self) -> int:
        return len(self.text.strip().splitlines())


def programs() -> list[Program]:
    """Return the programs of the page."""
    text = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    return [Program(library, task, body) for library, body, task in _BLOCK.findall(text)]


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one run."""

    next_s: float | None
    """How long after the fault the second began; None: never in this run."""
    beside: int
    """How many steps the first did after the second had begun."""
    code: int | None
    """How the first ended; None: it is still at work."""


def _kill(first: subprocess.Popen[bytes], _: Path) -> None:
    first.send_signal(signal.SIGKILL)


def _stand_still(first: subprocess.Popen[bytes], _: Path) -> None:
    first.send_signal(signal.SIGSTOP)


def _set_clock(seconds: int) -> Callable[[subprocess.Popen[bytes], Path], None]:
    def set_it(_: subprocess.Popen[bytes], clock: Path) -> None:
        with clock.open("r+b") as file:
            file.write(struct.pack("=q", seconds))

    return set_it


FAULTS: Final[dict[str, Callable[[subprocess.Popen[bytes], Path], None]]] = {
    "dies": _kill,
    "stands still and wakes up": _stand_still,
    "clock set an hour ahead": _set_clock(HOUR_S),
    "clock set an hour back": _set_clock(-HOUR_S),
}


def interpreter() -> Path:
    """Return the interpreter that has the clients. Raises Absent."""
    place = peers.cache() / f"venv-compare-{sys.version_info.major}.{sys.version_info.minor}"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        for words in (
            [sys.executable, "-m", "venv", "--clear", str(place)],
            [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", "--retries", "0", *CLIENTS],
        ):
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode:
                raise peers.Absent(f"the clients cannot be had: {done.stderr.strip().splitlines()[-1:]}")
        (place / "complete").touch()
    return python


def clock_library(directory: Path) -> Path:
    """Build what gives one process another clock. Raises Absent where there is no C compiler."""
    built = directory / "clock.so"
    words = ["cc", "-O1", "-shared", "-fPIC", "-o", str(built), str(WORKER.with_name("clock.c")), "-ldl"]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise peers.Absent(f"no clock can be set: {problem}") from None
    return built


@contextlib.contextmanager
def services(directory: Path, wanted: Sequence[str] = ("tenure", *CLIENTS)) -> Iterator[dict[str, tuple[Path, str]]]:
    """Start what the libraries need; yield for each that can be had its interpreter, and where it is."""
    found: dict[str, tuple[Path, str]] = {}
    with contextlib.ExitStack() as stack:
        numbers = fast_policy(random.Random(str(directory)).randbytes(16))  # as the site names its cluster
        policy = check_policy(
            msgspec.structs.replace(
                numbers, lease_term_max_ns=4 * SECOND, renew_period_ns=SECOND, attempt_timeout_ns=700 * MS
            )
        )
        site = Site(directory, policy=policy)
        stack.callback(site.close)
        cluster = stack.enter_context(site.open())
        cluster.routes.host.try_host(cluster.map.shard_of("nightly"), cluster.map)
        found["tenure"] = Path(sys.executable), f"{site.root}|{site.node_dir()}"
        try:
            if not set(wanted) & set(CLIENTS):
                yield found
                return
            python = interpreter()
            (directory / "locks").mkdir()
            found["filelock"] = python, str(directory / "locks")
            for library, start in (("kazoo", peers.zookeeper), ("etcd3gw", peers.etcd)):
                with contextlib.suppress(peers.Absent):
                    found[library] = python, stack.enter_context(start(directory)).target
        except peers.Absent as problem:
            print(f"left out: {problem}", file=sys.stderr)
        yield found


class Scene:
    """Two processes at one task."""

    def __init__(self, directory: Path, program: Program, python: Path, place: str) -> None:
        self.effects, self._clock = directory / "effects", directory / "clock"
        self._program = directory / "program.py"
        self._program.write_text(program.text, encoding="utf-8")
        self._clock.write_bytes(bytes(8))
        self._words = [str(python), str(WORKER), program.library, program.task]
        self._place = place
        self._with_clock = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "LD_PRELOAD": str(clock_library(directory)),
            "CLOCK_OFFSET_FILE": str(self._clock),
        }  # fmt: skip
        self._without = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._log = (directory / "said").open("ab")

    def begin(self, name: str) -> subprocess.Popen[bytes]:
        words = [*self._words, name, str(self._program), str(self.effects), self._place]
        environment = self._with_clock if name == "first" else self._without
        return subprocess.Popen(words, env=environment, stdout=self._log, stderr=self._log)

    def done(self) -> list[str]:
        """Return who did each step, in order."""
        return self.effects.read_text(encoding="ascii").split() if self.effects.exists() else []

    def until(self, what: Callable[[list[str]], bool], patience_s: float) -> bool:
        ends = time.monotonic() + patience_s
        while not what(self.done()):
            if time.monotonic() > ends:
                return False
            time.sleep(0.02)
        return True

    def _said(self) -> str:
        return "the first does not begin: " + Path(self._log.name).read_text(errors="replace")[-2000:]

    def play(self, fault: str) -> Told:
        first, second = self.begin("first"), None
        try:
            assert self.until(lambda done: len(done) > 10, 30), self._said()
            second = self.begin("second")
            time.sleep(2)
            assert "second" not in self.done(), "they work side by side, and nothing has happened yet"
            FAULTS[fault](first, self._clock)
            began = time.monotonic()
            came = self.until(lambda done: "second" in done, STILL_S if "still" in fault else PATIENCE_S)
            next_s = time.monotonic() - began if came else None
            if "still" in fault:
                time.sleep(max(0.0, STILL_S - (time.monotonic() - began)))
                first.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                first.wait(3)
            done = self.done()
            beside = done[done.index("second") :].count("first") if "second" in done else 0
            return Told(next_s, beside, first.poll())
        finally:
            for process in (first, second):
                if process is not None:
                    process.kill()
                    process.wait()
            self._log.close()


def words(fault: str, told: Told) -> str:
    """Return a run in the words of the table."""
    if told.next_s is None:
        later = "waits as long as it stands still" if "still" in fault else "the first goes on"
        return f"{later}, {'both' if told.beside else 'never both'} at work" if told.beside else later
    begins = f"next after {max(told.next_s, 0.1):.1f} s"
    return f"{begins}; **{told.beside} steps beside it**" if told.beside else f"{begins}; none beside it"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, str]] = {}
    unsafe = 0
    with tempfile.TemporaryDirectory() as place, services(Path(place)) as found:
        for program in programs():
            for fault in FAULTS:
                key = f"{program.library} {program.task} {fault}"
                if options.only not in key or program.library not in found:
                    continue
                directory = Path(tempfile.mkdtemp(dir=place))
                told = Scene(directory, program, *found[program.library]).play(fault)
                said = words(fault, told)
                print(f"{key}: {said}; the first ended with {told.code}", flush=True)
                rows.setdefault((program.task, program.library), {})[fault] = said
                unsafe += program.library == "tenure" and (told.beside > 0 or (told.next_s is None and "dies" in fault))
    if options.write:
        lines = {(each.task, each.library): each.lines for each in programs()}
        table = [f"| task | with | lines | {' | '.join(FAULTS)} |", f"|---|---|---|{'---|' * len(FAULTS)}"]
        for (task, library), cells in rows.items():
            said = " | ".join(cells.get(fault, "") for fault in FAULTS)
            table.append(f"| {TASKS[task]} | {library} | {lines[task, library]} | {said} |")
        write_between(PAGE, BEGINS, ENDS, ["", *table, ""])
    return 1 if unsafe else 0


if __name__ == "__main__":
    sys.exit(main())
