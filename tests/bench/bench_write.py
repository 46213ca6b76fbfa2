"""The write path of a maildir bag, as ratios: to its own bare system calls, and to the standard library's Maildir.

Run it as a script: ``python tests/bench/bench_write.py [--rounds N] [--writes N] [--directory DIR] [--json]``. Three
contenders take turns, in an order that changes every round, in one directory of one file system: what the machine
does meanwhile hits all of them. Reported are medians over the rounds of each round's median.
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

from appliance.bag.looks import FrameFile  # noqa: E402 - a script finds the repository first
from appliance.bag.outcome import Committed  # noqa: E402
from appliance.bag.posix import PosixStorage  # noqa: E402
from appliance.formats.paths import PRELOCK, SEAL, DataName  # noqa: E402
from tests.support.bags import INCARNATION, Node  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAYLOADS = (b"x" * 200,) * 16


def ours(root: Path) -> Callable[[], None]:
    """Return one write of a frame that is encoded already, looks included."""
    root.mkdir()
    node = Node(PosixStorage(root))
    template = node.file(*PAYLOADS)
    numbers = itertools.count(1)

    def write() -> None:
        file = FrameFile(template.bag, DataName("n1", INCARNATION, next(numbers)), template.data)
        assert node.writer.write(file) == Committed()

    return write


def bare(root: Path, data: bytes) -> Callable[[], None]:
    """Return the same system calls, and nothing else."""
    tmp, rack, bag = root / "tmp", root / "rack", root / "rack" / "bag"
    for each in (root, tmp, rack, bag):
        each.mkdir()
    numbers = itertools.count(1)
    tmp_name, rack_name, bag_name = str(tmp), str(rack), str(bag)

    def there(name: str, directory: int) -> bool:
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def write() -> None:
        name = f"{next(numbers):08d}"
        prepared = f"{tmp_name}/{name}"
        descriptor = os.open(prepared, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o664)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)
        os.link(prepared, f"{bag_name}/{name}")
        os.unlink(prepared)  # noqa: PTH108 - the bare call
        for path, names in ((bag_name, (name, PRELOCK)), (rack_name, (PRELOCK, SEAL))):
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for each in names:
                there(each, directory)
            os.close(directory)

    return write


def maildir(root: Path, data: bytes) -> Callable[[], None]:
    """Return one ``mailbox.Maildir.add``: temporary file, flush, link, unlink; it looks at nothing."""
    box = mailbox.Maildir(root, create=True)

    def write() -> None:
        box.add(data)

    return write


def measured(write: Callable[[], None], writes: int) -> list[int]:
    """Return nanoseconds of each write."""
    clock = time.perf_counter_ns
    spans = []
    for _ in range(writes):
        begin = clock()
        write()
        spans.append(clock() - begin)
    return spans


def turns(names: list[str], rounds: int) -> Iterator[list[str]]:
    """Yield the order of each round: everybody is first, and everybody follows everybody."""
    orders = list(itertools.permutations(names))
    for number in range(rounds):
        yield list(orders[number % len(orders)])


def run(directory: Path, rounds: int, writes: int) -> dict[str, float]:
    """Return medians in microseconds and their ratios."""
    size = len(Node(PosixStorage(directory)).file(*PAYLOADS).data)
    contenders = {
        "leasehold": ours(directory / "ours"),
        "bare": bare(directory / "bare", b"x" * size),
        "maildir": maildir(directory / "maildir", b"x" * size),
    }
    for write in contenders.values():
        measured(write, writes)  # warm
    medians: dict[str, list[float]] = {name: [] for name in contenders}
    tails: dict[str, list[float]] = {name: [] for name in contenders}
    for order in turns(list(contenders), rounds):
        for name in order:
            spans = sorted(measured(contenders[name], writes))
            medians[name].append(spans[len(spans) // 2] / 1_000)
            tails[name].append(spans[len(spans) * 99 // 100] / 1_000)
    result = {f"{name}_us": statistics.median(values) for name, values in medians.items()}
    result |= {f"{name}_p99_us": statistics.median(values) for name, values in tails.items()}
    for name in ("bare", "maildir"):
        ratios = [mine / other for mine, other in zip(medians["leasehold"], medians[name], strict=True)]
        result[f"against_{name}"] = statistics.median(ratios)
    result["bytes"] = float(size)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--writes", type=int, default=100)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        result = run(Path(directory), options.rounds, options.writes)
    if options.json:
        print(json.dumps(result, sort_keys=True))
        return 0
    print(f"one flush of {len(PAYLOADS)} messages, {result['bytes']:.0f} bytes, fsync included")
    for name in ("leasehold", "bare", "maildir"):
        print(f"  {name:10s} median {result[f'{name}_us']:9.1f} us   p99 {result[f'{name}_p99_us']:9.1f} us")
    print(f"  leasehold / its own bare system calls  {result['against_bare']:.2f}")
    print(f"  leasehold / mailbox.Maildir.add        {result['against_maildir']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
