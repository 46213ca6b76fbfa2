"""Reading settled messages in bulk, as ratios: to hashing the same bytes, and to plain loops over the same messages.

Run it as a script: ``python tests/bench/bench_read.py [--rounds N] [--messages N] [--directory DIR] [--json]``; SHORT=1
in the environment asks for a look instead of a measurement. The tree is real: several writers, frames of 256 messages
of 300 bytes under one witness, a signed time every 50 ms, bags closed, racks sealed and packed. Every contender reads
everything in one thread; they take turns, in an order that changes every round. Reported are medians over the rounds.

tenure's readings check all that a reader checks: the list's digests, the frames' checksums, the rules of acceptance
with their signatures. Rates are per second of processor time, that of child processes included: what one core does.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from appliance.bag.posix import PosixStorage  # noqa: E402
from appliance.bag.writing import Committed  # noqa: E402 - a script finds the repository first
from appliance.formats.closed import PACK, PackMaker  # noqa: E402
from appliance.formats.lease import Holder  # noqa: E402
from appliance.formats.paths import SEAL  # noqa: E402
from tests.support.bags import T0, Node, witness  # noqa: E402
from tests.support.cluster import HandSite  # noqa: E402
from timeagent.units import HOUR, MS, SECOND  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.bag.message import Message
    from appliance.bag.ports import Storage
    from appliance.bag.writing import FrameFile
    from appliance.formats.paths import Rack

MESSAGE_BYTES: Final = 300
FRAME_MESSAGES: Final = 256
WRITERS: Final = 4
FRAMES_A_BAG: Final = 160
TOKEN_NS: Final = 50 * MS
HINTED_BATCH: Final = 64
HINTED_READS: Final = 9


def build(root: Path, messages: int) -> Node:
    """Write, close and seal a tree of about that many messages; return a node whose time is long after."""
    node = Node(PosixStorage(root))
    for number in range(messages // FRAME_MESSAGES):
        bag, place = divmod(number, FRAMES_A_BAG)
        at = T0 + bag * SECOND + place * (900 * MS) // FRAMES_A_BAG + 10 * MS
        if node.time.midpoint_ns // TOKEN_NS != at // TOKEN_NS:
            node.time.midpoint_ns = at - at % TOKEN_NS
            token = node.time.token().encode()
        if place == 0:
            expiry = node.time.midpoint_ns + 10 * SECOND
            granted = [
                witness(node.time, expiry_ns=expiry, floor_ns=node.time.midpoint_ns - SECOND, holder=_holder(writer))
                for writer in range(WRITERS)
            ]
        assert node.writer.write(_flush(node, number, at, token, granted[number % WRITERS])) == Committed()
    node.time.midpoint_ns += HOUR
    node.sealer.seal(node.grid.rack(at))
    rack = node.grid.rack(T0)
    while rack.start_ns <= at:
        pack_rack(node.context.storage, rack)
        for path in (root / rack.path).glob("*/*.msg"):
            path.unlink()
        rack = node.grid.next_rack(rack)
    read = by_batches(node)
    assert read == messages // FRAME_MESSAGES * FRAME_MESSAGES, f"readers take {read} of {messages} messages"
    return node


def _holder(writer: int) -> Holder:
    return Holder(node="n1", process=writer + 1, boot=bytes(16), incarnation=bytes(7) + bytes([writer]))


def pack_rack(storage: Storage, rack: Rack) -> None:
    """Put the pack of a sealed rack beside its seal."""
    where = f"{rack.path}/{SEAL}"
    maker = PackMaker(storage.read(where) or b"", where)
    paths = [f"{rack.path}/{each.bag}/{each.entry.name}" for each in maker.listed]

    def chunks() -> Iterator[bytes]:
        yield maker.head
        for path in paths:
            data = storage.read(path) or b""
            maker.add(data)
            yield data
        yield maker.tail()

    storage.publish_stream(f"{rack.path}/{PACK}", chunks(), f"{rack.path}/tmp")


def _flush(node: Node, number: int, at: int, token: bytes, granted: bytes) -> FrameFile:
    line = b"%08d " % number
    payloads = [line + b"%06d " % index + b"x" * (MESSAGE_BYTES - 16) for index in range(FRAME_MESSAGES)]
    stamps = [at + index * 20_000 for index in range(FRAME_MESSAGES)]
    return node.file(
        *payloads,
        sequence=number + 1,
        incarnation=_holder(number % WRITERS).incarnation,
        timestamps=stamps,
        time=token,
        witnesses=(granted,),
    )


def by_batches(node: Node) -> int:
    """Read in bulk: timestamps as one column, payloads as one list a bag."""
    count = 0
    for batch in node.again().reader.batches():
        assert len(batch.payloads()) == len(batch.timestamps)
        count += len(batch)
    return count


def by_messages(node: Node) -> int:
    """Read message by message, each an object."""
    return sum(len(message.payload) > 0 for message in node.again().reader.settled())


def data_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix == ".msg" or path.name == "pack")


def by_hashlib(files: list[Path], count: int) -> int:
    """Hash the same files in this process: the least that any checked reading costs."""
    for path in files:
        hashlib.sha256(path.read_bytes()).digest()
    return count


def by_lines(path: Path) -> int:
    """Loop over the lines of a text file, nothing checked."""
    count = 0
    with path.open("rb") as stream:
        for line in stream:
            count += len(line) > 0
    return count


class Row(msgspec.Struct, array_like=True):
    """What a hand-made log would keep of a message."""

    timestamp_ns: int
    writer: str
    sequence: int
    payload: bytes


def by_msgpack(path: Path) -> int:
    """Decode one msgpack record a message, length before it, nothing checked."""
    decoder = msgspec.msgpack.Decoder(Row)
    data = memoryview(path.read_bytes())
    offset = count = 0
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "little")
        decoder.decode(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
        count += 1
    return count


def write_peers(node: Node, lines: Path, packed: Path) -> int:
    """Put the same messages into the files of the peers; return how many there are."""
    count = 0
    with lines.open("wb") as text, packed.open("wb") as rows:
        for message in node.reader.settled():
            text.write(message.payload + b"\n")
            row = msgspec.msgpack.encode(Row(message.timestamp_ns, message.writer, message.sequence, message.payload))
            rows.write(len(row).to_bytes(4, "little") + row)
            count += 1
    return count


def spent_ns() -> int:
    """Return the processor time of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * SECOND)


def rates(contenders: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Return messages a second of processor time of each contender: medians over the rounds."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    orders = itertools.cycle(itertools.permutations(contenders))
    for order in itertools.islice(orders, 0, rounds * 7, 7):
        for name in order:
            begin = spent_ns()
            count = contenders[name]()
            found[name].append(count * SECOND / (spent_ns() - begin))
    return {name: statistics.median(values) for name, values in found.items()}


def peak_bytes(directory: Path, messages: int) -> int:
    """Return the most memory that a process of its own needs to read a tree of so many messages in batches."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from tests.bench import bench_read as b;"
        "print(b.measured_peak(Path(sys.argv[2]), int(sys.argv[3])))"
    )
    words = [sys.executable, "-c", script, str(ROOT), str(directory), str(messages)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def measured_peak(directory: Path, messages: int) -> int:
    node = Node(PosixStorage(directory))
    assert by_batches(node) == messages
    # Not getrusage: what it says begins with the memory of the process that started this one.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def hinted(directory: Path, domains: int, rounds: int) -> tuple[float, int]:
    """Return the processor time of reading one domain by hints, as a part of reading all to find it; and its messages.

    As many domains take turns in one log; each reading is a process of its own as far as it knows.
    """
    root = directory / "root"
    root.mkdir(parents=True)
    site = HandSite(directory)
    storage = PosixStorage(root)
    names = [f"d{number:03d}" for number in range(domains)]
    writers = {name: site.session(storage=storage) for name in names}
    for number in range(rounds):
        for name, session in writers.items():
            with session.acquire(name, record_only=True) as leases:
                batch = [b"%06d " % number + b"x" * (MESSAGE_BYTES - 7)] * HINTED_BATCH
                assert session.publish("log", batch, under=leases) == Committed()
            site.time.advance(20 * MS)
    parts = []
    found: list[Message] = []
    for name in names[:HINTED_READS]:
        spent = []
        for narrow in (True, False):
            reader = site.session(storage=storage)
            with reader.acquire(name) as leases:
                begin = time.process_time_ns()
                if narrow:
                    found = reader.read_domains("log", under=leases)
                else:
                    assert [each for each in reader.read("log", under=leases) if name in each.domains] == found
                spent.append(time.process_time_ns() - begin)
        assert len(found) == rounds * HINTED_BATCH
        parts.append(spent[0] / spent[1])
    site.close()
    return statistics.median(parts), len(found)


def main() -> int:
    short = os.environ.get("SHORT") == "1"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2 if short else 9)
    parser.add_argument("--messages", type=int, default=100_000 if short else 500_000)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        root, quarter = directory / "root", directory / "quarter"
        root.mkdir()
        quarter.mkdir()
        node = build(root, options.messages)
        fewer = build(quarter, options.messages // 4)
        lines, packed = directory / "lines", directory / "rows"
        count = write_peers(node, lines, packed)
        files = data_files(root)
        result = rates(
            {
                "batches": lambda: by_batches(node),
                "messages": lambda: by_messages(node),
                "hashlib": lambda: by_hashlib(files, count),
                "lines": lambda: by_lines(lines),
                "msgpack": lambda: by_msgpack(packed),
            },
            options.rounds,
        )
        peaks = (peak_bytes(quarter, by_batches(fewer)), peak_bytes(root, count))
        crowd = {each: hinted(directory / f"hints{each}", each, 8) for each in ((8, 32) if short else (8, 32, 128))}
    result |= {f"hinted_of_{each}": part for each, (part, _) in crowd.items()}
    result |= {"peak_bytes_quarter": float(peaks[0]), "peak_bytes": float(peaks[1])}
    if options.json:
        print(json.dumps(result, sort_keys=True))
        return 0
    print(f"{count} messages of {MESSAGE_BYTES} bytes, {FRAME_MESSAGES} a frame, {WRITERS} writers, one thread")
    for each in ("batches", "messages", "hashlib", "lines", "msgpack"):
        ratio = result["batches"] / result[each]
        print(f"  {each:10s} {result[each]:12,.0f} messages/s a core   batches / {each}: {ratio:.2f}")
    for number, (part, held) in crowd.items():
        print(f"  {held} messages of one domain of {number}, by hints: {part:.3f} of the time of reading the log")
    few, all_ = (peak / 2**20 for peak in peaks)
    print(f"  memory: {few:.0f} MiB at a quarter of the messages, {all_:.0f} MiB at all of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
