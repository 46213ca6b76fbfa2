"""Writing and closing, as ratios: to their own bare system calls, to single messages, and to the standard library.

Run it as a script: ``python tests/bench/bench_write.py [--directory DIR]... [--json]``; ``SHORT=1`` in the environment
for a quick look. In each directory (default: /dev/shm and the temporary directory) contenders take turns, in an order
that changes every round: what the machine does meanwhile hits all of them. Reported are medians over the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mailbox
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.bag.closing import Closed  # noqa: E402 - a script finds the repository first
from appliance.bag.posix import PosixStorage  # noqa: E402
from appliance.bag.writing import Committed, FrameFile  # noqa: E402
from appliance.formats.birth import BagKind  # noqa: E402
from appliance.formats.paths import LOCK, PRELOCK, SEAL, DataName  # noqa: E402
from tests.support.bags import INCARNATION, Node  # noqa: E402
from timeagent.units import SECOND  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.formats.paths import Grid

SHORT = bool(os.environ.get("SHORT"))
MESSAGE = b"x" * 300
BATCH = 64
PROCESSES = 64
LOCK_BYTES_A_FILE = 72
FOREIGN_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
WARM = 40
"""So many writes before a window begins."""
STARTING_NS = 50_000_000
"""In so long everybody has heard when the window begins."""
LIMITS = {
    "maildir_against_bare": ("<=", 1.5),
    "log_against_bare": ("<=", 1.5),
    "maildir_batch_rate": (">=", 10.0),
    "log_batch_rate": (">=", 10.0),
    "maildir_against_mailbox": (">=", 5.0),
    "log_against_mailbox": (">=", 5.0),
    "maildir_64_processes": (">=", 1.0),
    "log_64_processes": (">=", 1.0),
    "closing_against_bare": ("<=", 2.0),
}


def ours(root: Path, kind: BagKind, messages: int) -> Callable[[], None]:
    """Return one write of a frame that is encoded already, looks included."""
    root.mkdir()
    node = Node(PosixStorage(root), kind=kind)
    template = node.file(*(MESSAGE,) * messages)
    numbers = itertools.count(1)

    def write() -> None:
        file = FrameFile(template.bag, DataName("n1", INCARNATION, next(numbers)), template.data)
        assert node.writer.write(file) == Committed()

    return write


def bare(root: Path, kind: BagKind, size: int, who: str = "one") -> Callable[[], None]:
    """Return the same system calls, and nothing else. ``who``: one of those who write below one root."""
    tmp, rack, bag = root / "tmp", root / "rack", root / "rack" / "bag"
    for each in (root, tmp, rack, bag):
        each.mkdir(exist_ok=True)
    numbers = itertools.count(1)
    tmp_name, rack_name, bag_name, data = str(tmp), str(rack), str(bag), b"x" * size
    log = f"{bag_name}/{who}.log"
    (bag / f"{who}.log").touch()

    def look(name: str) -> None:
        bare_look(bag_name, (name, PRELOCK))
        bare_look(rack_name, (PRELOCK, SEAL))

    def publish() -> None:
        name = f"{who}.{next(numbers):08d}"
        prepared = f"{tmp_name}/{name}"
        descriptor = os.open(prepared, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o664)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)
        os.link(prepared, f"{bag_name}/{name}")
        os.unlink(prepared)  # noqa: PTH108 - the bare call
        look(name)

    def append() -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.fstat(descriptor)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)
        look(f"{who}.log")

    return publish if kind is BagKind.MAILDIR else append


def bare_look(path: str, names: tuple[str, ...]) -> None:
    """Open a directory and ask for names in it."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for each in names:
        try:  # noqa: SIM105 - the context manager takes longer
            os.stat(each, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            pass
    os.close(directory)


def box(root: Path) -> Callable[[], None]:
    """Return one ``mailbox.Maildir.add``: temporary file, flush, link, unlink; it looks at nothing."""
    maildir = mailbox.Maildir(root, create=True)

    def write() -> None:
        maildir.add(MESSAGE)

    return write


def measured(write: Callable[[], None], writes: int) -> float:
    """Return the median nanoseconds of a write."""
    clock = time.perf_counter_ns
    spans = []
    for _ in range(writes):
        begin = clock()
        write()
        spans.append(clock() - begin)
    return statistics.median(spans)


def turns(names: list[str], rounds: int) -> Iterator[list[str]]:
    """Yield the order of each round: everybody is first in turn, forwards and backwards."""
    for number in range(rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        yield turned if number % 2 else turned[::-1]


def writing(directory: Path, rounds: int, writes: int) -> dict[str, float]:
    """Return ratios of single flushes."""
    contenders: dict[str, Callable[[], None]] = {"box": box(directory / "box")}
    for kind in BagKind:
        size = len(Node(PosixStorage(directory)).file(*(MESSAGE,) * BATCH).data)
        contenders[f"{kind}"] = ours(directory / f"{kind}", kind, BATCH)
        contenders[f"{kind} single"] = ours(directory / f"{kind}-single", kind, 1)
        contenders[f"{kind} bare"] = bare(directory / f"{kind}-bare", kind, size)
    for write in contenders.values():
        measured(write, writes)  # warm
    medians: dict[str, list[float]] = {name: [] for name in contenders}
    for order in turns(list(contenders), rounds):
        for name in order:
            medians[name].append(measured(contenders[name], writes))

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(medians[one], medians[other], strict=True))

    found = {f"{name.replace(' ', '_')}_us": statistics.median(each) / 1_000 for name, each in medians.items()}
    for kind in BagKind:
        found[f"{kind}_against_bare"] = ratio(kind, f"{kind} bare")
        found[f"{kind}_batch_rate"] = BATCH * ratio(f"{kind} single", kind)
        found[f"{kind}_against_mailbox"] = BATCH * ratio("box", kind)
    return found


def one_of_many(storage: PosixStorage, grid: Grid, number: int) -> Callable[[], None]:
    """Return one write of one of several processes, all of one node, into one bag."""
    node = Node(storage, grid=grid)
    template = node.file(*(MESSAGE,) * BATCH)
    incarnation, numbers = number.to_bytes(8, "big"), itertools.count()

    def write() -> None:
        file = FrameFile(template.bag, DataName("n1", incarnation, next(numbers)), template.data)
        assert node.writer.write(file) == Committed()

    return write


def crowd(directory: Path, kind: BagKind, processes: int, window_ns: int, *, is_bare: bool) -> float:
    """Return flushes a second of several processes together, in one window that begins when all of them are ready.

    Who is ready sleeps: one that waited in a loop would keep the others from becoming ready. Ready is who has written
    often enough to have pages of its own: a child of a fork copies them while it writes, which takes longer than that.
    """
    storage = PosixStorage(directory)
    node = Node(storage, kind=kind)
    size = len(node.file(*(MESSAGE,) * BATCH).data)
    all_ready, ready = os.pipe()
    starting, start = os.pipe()
    children = []
    for number in range(processes):
        reading, writing_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(start)
            who = f"{number:016x}"
            write = bare(directory / "bare", kind, size, who) if is_bare else one_of_many(storage, node.grid, number)
            for _ in range(WARM):
                write()
            os.write(ready, b"r")
            begin = int.from_bytes(os.read(starting, 8), "big")
            done = in_window(write, (begin, begin + window_ns))
            os.write(writing_end, done.to_bytes(8, "big"))
            os._exit(0)
        os.close(writing_end)
        children.append((child, reading))
    os.close(starting)
    for _ in children:
        assert os.read(all_ready, 1) == b"r"
    os.write(start, (time.monotonic_ns() + STARTING_NS).to_bytes(8, "big") * processes)
    for descriptor in (all_ready, ready, start):
        os.close(descriptor)
    total = 0
    for child, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            total += int.from_bytes(pipe.read(), "big")
        assert os.waitpid(child, 0)[1] == 0
    return total * SECOND / window_ns


def in_window(write: Callable[[], None], window: tuple[int, int]) -> int:
    """Write from one instant of the monotonic clock to another; return how many flushes were done in between."""
    done = 0
    time.sleep(max(0, window[0] - time.monotonic_ns()) / SECOND)
    while True:
        write()
        if time.monotonic_ns() >= window[1]:
            return done
        done += 1


def crowds(directory: Path, rounds: int, window_ns: int) -> dict[str, float]:
    """Return the total rate of many processes, to that of one: ours, and of the bare system calls."""
    found = {}
    for kind in BagKind:
        ratios: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            rates = {}
            several = [(processes, is_bare) for is_bare in (False, True) for processes in (1, PROCESSES)]
            for processes, is_bare in several[:: 1 if number % 2 else -1]:
                with tempfile.TemporaryDirectory(dir=directory) as place:
                    rates[processes, is_bare] = crowd(Path(place), kind, processes, window_ns, is_bare=is_bare)
            for is_bare, told in ratios.items():
                told.append(rates[PROCESSES, is_bare] / rates[1, is_bare])
        found[f"{kind}_64_processes"] = statistics.median(ratios[False])
        found[f"{kind}_64_bare_processes"] = statistics.median(ratios[True])
    return found


def closing(directory: Path, files: int, rounds: int) -> dict[str, float]:
    """Return nanoseconds of processor time a file of closing a bag: ours, and of two bare closers.

    Processor time, the kernel's included: a closing is too long to be repeated until nothing else runs. Each has a bag
    of its own, and each goes first in turn.
    """
    spans: dict[str, list[float]] = {"ours": [], "plain": [], "same": []}
    for number, order in enumerate(turns(list(spans), rounds)):
        for who in order:
            root = directory / f"close{files}-{number}-{who}"
            root.mkdir()
            node = Node(PosixStorage(root))
            file = node.file(*(MESSAGE,) * 4)
            bag = root / file.bag.path
            bag.mkdir(parents=True)
            for sequence in range(files):
                (bag / DataName("n1", INCARNATION, sequence).text()).write_bytes(file.data)
            node.time.advance(4 * SECOND)
            begin = time.process_time_ns()
            if who == "ours":
                closed = node.closer.close(file.bag)
            else:
                bare_closing(bag, root, plain_reading if who == "plain" else our_reading)
            spans[who].append((time.process_time_ns() - begin) / files)
            if who == "ours":
                assert isinstance(closed, Closed)
                assert len(closed.lock.entries) == files
    return {who: statistics.median(each) for who, each in spans.items()}


def plain_reading(place: str, names: list[str]) -> None:
    """Read files as the protocol says it: open, fstat for the size, read, close."""
    for name in names:
        descriptor = os.open(f"{place}/{name}", FOREIGN_OPEN)
        size = os.fstat(descriptor).st_size
        os.read(descriptor, size + 1)
        os.close(descriptor)


def our_reading(place: str, names: list[str]) -> None:
    """Read files by the very calls that the closer comes to: Python takes less time for them."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    for name in names:
        descriptor = os.open(name, FOREIGN_OPEN, dir_fd=directory)
        os.read(descriptor, 65536)
        os.lseek(descriptor, 0, os.SEEK_END)
        os.close(descriptor)
    os.close(directory)


def bare_closing(bag: Path, root: Path, reading: Callable[[str, list[str]], None]) -> None:
    """Do what the protocol asks of any closer, without a thought: no digest, no signature, no list.

    Look whether it is closed, prelock, list, open and measure and read every file, publish a lock file of the same
    size, look for it, and read what is there.
    """
    place = str(bag)
    bare_look(place, (PRELOCK, LOCK))
    os.close(os.open(f"{place}/{PRELOCK}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    names = [name for name in sorted(os.listdir(place)) if name.endswith(".msg")]  # noqa: PTH208 - the bare call
    reading(place, names)
    prepared = f"{root}/bare-{LOCK}"
    descriptor = os.open(prepared, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    os.write(descriptor, b"x" * LOCK_BYTES_A_FILE * len(names))
    os.fsync(descriptor)
    os.close(descriptor)
    os.link(prepared, f"{place}/{LOCK}")
    os.unlink(prepared)  # noqa: PTH108 - the bare call
    bare_look(place, (LOCK,))
    descriptor = os.open(f"{place}/{LOCK}", FOREIGN_OPEN)
    os.read(descriptor, os.fstat(descriptor).st_size + 1)
    os.close(descriptor)


def run(directory: Path) -> dict[str, float]:
    """Return everything measured in one directory."""
    rounds, writes = (4, 30) if SHORT else (14, 100)
    found = writing(directory, rounds, writes)
    found |= crowds(directory, 1 if SHORT else 3, SECOND // 2)
    ratios = []
    for files in (100, 1_000) if SHORT else (100, 1_000, 10_000):
        spans = closing(directory, files, 5 if files > 100 else 25)
        found[f"closing_{files}_us_a_file"] = spans["ours"] / 1_000
        found[f"closing_{files}_against_bare"] = spans["ours"] / spans["plain"]
        found[f"closing_{files}_against_same"] = spans["ours"] / spans["same"]
        ratios.append(spans["ours"] / spans["plain"])
    found["closing_against_bare"] = max(ratios)
    return found


def missed(found: dict[str, float]) -> list[str]:
    """Return the names of what is outside its limit."""
    return [
        name for name, (sign, limit) in LIMITS.items() if (found[name] > limit if sign == "<=" else found[name] < limit)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, action="append", help="where to write; may be repeated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for place in options.directory or [Path("/dev/shm"), Path(tempfile.gettempdir())]:
        with tempfile.TemporaryDirectory(dir=place) as directory:
            results[str(place)] = run(Path(directory))
    if options.json:
        print(json.dumps(results, sort_keys=True))
        return 0
    for place, found in results.items():
        print(f"{place}: flushes of {BATCH} messages of {len(MESSAGE)} bytes, fsync included")
        for name, value in found.items():
            limit = LIMITS.get(name)
            said = f"   {limit[0]} {limit[1]:g}{'   MISSED' if name in missed(found) else ''}" if limit else ""
            print(f"  {name:28s} {value:10.2f}{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
